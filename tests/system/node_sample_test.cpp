// Values of a node come from the files of Linux: units, rates, limits of control groups, missing files.

#include "system/node_sample.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <fstream>

#include "harness/temporary_folder.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;
using Values = std::map<std::string, double>;

Values named(const std::vector<NamedValue>& list) {
  Values values;
  for (const NamedValue& value : list) values[value.name] = value.value;
  return values;
}

/// A folder with copies of the files that are read, of a node with four cores.
class NodeValues : public testing::Test {
 protected:
  NodeValues() { write_counters(0); }

  void write(const std::string& path, const std::string& text) const {
    const fs::path file = root_ / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  /// Counters after some seconds, in which: three of four cores are busy, one of them by each of two processes.
  void write_counters(int64_t seconds) const {
    const int64_t tick = sysconf(_SC_CLK_TCK), t = seconds * tick;
    write("proc/stat", fmt::format("cpu  {} 0 {} {} 0 0 0 0 0 0\ncpu0 1 2 3\n", 1000 + 2 * t, 500 + t, 9000 + t));
    for (const int64_t id : {7, 8}) {
      const std::string process = fmt::format("proc/{}/", id);
      write(process + "stat",
            fmt::format("{} (a (b) c) R 1 1 1 0 -1 4194560 1 2 3 4 {} {} 0 0 20\n", id, 100 + t / 2, 50 + t - t / 2));
      write(process + "status", "Name:\tx\nVmHWM:\t  3000 kB\nVmRSS:\t  2000 kB\nCpus_allowed_list:\t0-1,3\n");
      write(process + "io",
            fmt::format("rchar: 1\nread_bytes: {}\nwrite_bytes: {}\n", 4096 + 1000 * seconds, 500 * seconds));
    }
    write("proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    800 kB\n");
    write("proc/self/net/dev",
          fmt::format(
              "Inter-|   Receive\n face |bytes\n    lo: {0} 0 0 0 0 0 0 0 {0} 0\n  eth0: {1} 1 0 0 0 0 0 0 {2} 5\n"
              "bridge: {1} 1 0 0 0 0 0 0 {2} 5\n",
              99999 * seconds, 10 + 3000 * seconds, 20 + 4000 * seconds));
  }
  /// Values over two seconds.
  Values values() const {
    NodeSample before = sample_node(scope());
    write_counters(2);
    NodeSample after = sample_node(scope());
    before.time = 100;
    after.time = 102;
    return named(node_values(before, after));
  }
  NodeScope scope() const { return {{7, 8}, root_.text(), root_.text()}; }

  test::TemporaryFolder root_;
};

TEST_F(NodeValues, ComeFromTheirFiles) {
  write("sys/class/net/eth0/device/vendor", "1");
  Values found = values();
  EXPECT_GT(found.at("disk_free_bytes"), 0);
  found.erase("disk_free_bytes");
  const Values expected = {{"cpu_percent", 75},
                           {"job_cpu_percent", 100 * 2.0 / 3},  // of cores 0, 1 and 3
                           {"memory_used_bytes", 200 * 1024},
                           {"memory_limit_bytes", 1000 * 1024},
                           {"job_memory_bytes", 2 * 2000 * 1024},
                           {"job_memory_peak_bytes", 2 * 3000 * 1024},
                           {"disk_read_bytes_per_second", 2000},
                           {"disk_write_bytes_per_second", 1000},
                           {"network_receive_bytes_per_second", 3000},
                           {"network_send_bytes_per_second", 4000}};
  EXPECT_EQ(found, expected);
}

// In a container no interface is a device: all but the loopback count.
TEST_F(NodeValues, CountEveryInterfaceWithoutDevices) {
  EXPECT_EQ(values().at("network_receive_bytes_per_second"), 2 * 3000);
}

TEST_F(NodeValues, RespectControlGroups) {
  write("proc/self/cgroup", "0::/job/step\n");
  write("sys/fs/cgroup/job/cpu.max", "200000 100000\n");
  write("sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
  write("sys/fs/cgroup/job/memory.max", "500000\n");
  write("sys/fs/cgroup/job/memory.current", "150000\n");
  const Values found = values();
  EXPECT_EQ(found.at("job_cpu_percent"), 100) << "two busy processes, a quota of two cores";
  EXPECT_EQ(found.at("memory_limit_bytes"), 500000);
  EXPECT_EQ(found.at("memory_used_bytes"), 150000);
}

TEST_F(NodeValues, InfinibandCountsWordsOfFourBytes) {
  const std::string port = "sys/class/infiniband/mlx5_0/ports/1/counters/";
  write(port + "port_rcv_data", "1000\n");
  write(port + "port_xmit_data", "0\n");
  NodeSample before = sample_node(scope());
  write(port + "port_rcv_data", "2000\n");
  NodeSample after = sample_node(scope());
  before.time = 0;
  after.time = 2;
  EXPECT_EQ(named(node_values(before, after)).at("infiniband_receive_bytes_per_second"), 2000);
  EXPECT_EQ(named(node_values(before, after)).at("infiniband_send_bytes_per_second"), 0);
}

TEST_F(NodeValues, AreLeftOutWhereAFileIsMissingOrACounterFell) {
  NodeSample before = sample_node(scope());
  fs::remove(root_ / "proc/7/io");
  fs::remove(root_ / "proc/8/io");
  NodeSample after = sample_node(scope());
  before.time = 0;
  after.time = 1;
  before.network_sent = after.network_sent + 1;
  const Values found = named(node_values(before, after));
  EXPECT_EQ(found.count("disk_read_bytes_per_second"), 0u);
  EXPECT_EQ(found.count("network_send_bytes_per_second"), 0u);
  EXPECT_EQ(found.count("network_receive_bytes_per_second"), 1u) << "control";
}

// The real files of this machine: this process computes for a while, which its values show.
TEST(NodeMonitor, SamplesThisMachine) {
  NodeMonitorOptions options;
  options.scope = {{getpid()}, ".", "/"};
  options.period = 0.4;
  NodeMonitor monitor(options);
  Values found;
  const auto begin = std::chrono::steady_clock::now();
  double sum = 0;
  while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds(500)) sum += std::sqrt(sum + 1);
  for (int looks = 0; found.empty() && looks < 200; ++looks) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    found = named(monitor.take());
  }
  EXPECT_TRUE(monitor.take().empty()) << "a sample is returned once";
  ASSERT_FALSE(found.empty());
  EXPECT_GT(sum, 0);
  EXPECT_GT(found.at("job_cpu_percent"), 0);
  EXPECT_LT(found.at("job_cpu_percent"), 150);
  EXPECT_LE(found.at("cpu_percent"), 100.5);
  EXPECT_GT(found.at("job_memory_bytes"), 1e6);
  EXPECT_GE(found.at("job_memory_peak_bytes"), found.at("job_memory_bytes"));
  EXPECT_GT(found.at("memory_used_bytes"), 1e6);
}

}  // namespace
}  // namespace llmtrain
