#include "device/host_memory.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "harness/temporary_folder.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;

/// A folder with copies of the system files that host_memory reads.
class HostMemory : public testing::Test {
 protected:
  HostMemory() { write("proc/meminfo", "MemTotal:       1000 kB\nMemFree:  1 kB\nMemAvailable:    800 kB\n"); }

  void write(const std::string& path, const std::string& text) {
    const fs::path file = root_ / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void expect(int64_t available, int64_t total) {
    const DeviceMemory memory = host_memory(root_.text());
    EXPECT_EQ(memory.available, available);
    EXPECT_EQ(memory.total, total);
  }
  test::TemporaryFolder root_;
};

TEST_F(HostMemory, WithoutControlGroups) { expect(800 * 1024, 1000 * 1024); }

TEST_F(HostMemory, Version2LimitOfTheParent) {
  write("proc/self/cgroup", "0::/job/step\n");
  write("sys/fs/cgroup/job/step/memory.max", "max\n");
  write("sys/fs/cgroup/job/step/memory.current", "1000\n");
  expect(800 * 1024, 1000 * 1024);
  write("sys/fs/cgroup/job/memory.max", "500000\n");
  write("sys/fs/cgroup/job/memory.current", "100000\n");
  expect(400000, 500000);
  write("sys/fs/cgroup/job/memory.stat", "anon 5\ninactive_file 30000\n");
  expect(430000, 500000);
  write("sys/fs/cgroup/job/memory.current", "600000\n");  // over its limit
  expect(0, 500000);
}

TEST_F(HostMemory, Version1) {
  write("proc/self/cgroup", "5:cpu,memory:/slurm/job_1\n3:cpuset:/x\n");
  write("sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes", "300000");
  write("sys/fs/cgroup/memory/slurm/job_1/memory.usage_in_bytes", "200000");
  expect(100000, 300000);
  write("sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes", "9223372036854771712");  // no limit
  expect(800 * 1024, 1000 * 1024);
}

TEST_F(HostMemory, ContainerSeesItsGroupAsTheMount) {
  write("proc/self/cgroup", "0::/not/visible/here\n");
  write("sys/fs/cgroup/memory.max", "400000\n");
  write("sys/fs/cgroup/memory.current", "150000\n");
  expect(250000, 400000);
}

TEST_F(HostMemory, ProcessorName) {
  EXPECT_FALSE(host_processor_name(root_.text()).empty());
  write("proc/cpuinfo", "processor\t: 0\nmodel name\t: Example CPU 9000  \nflags\t: fpu\n");
  EXPECT_EQ(host_processor_name(root_.text()), "Example CPU 9000");
}

}  // namespace
}  // namespace llmtrain
