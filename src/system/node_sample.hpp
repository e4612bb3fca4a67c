#pragma once
// Use of a node's processors, memory, disk and network, as Linux shows it in /proc and /sys.

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "metrics/records.hpp"
#include "system/gpu_usage.hpp"

namespace llmtrain {

/// Objects to observe on a node.
struct NodeScope {
  std::vector<int64_t> processes;    ///< ids of the job's processes on this node
  std::string folder;                ///< on the file system whose free space is wanted; empty: none
  std::filesystem::path root = "/";  ///< another folder in tests
};

/// State of a node at one moment. NaN: unknown here. Counters grow; their differences are rates.
struct NodeSample {
  static constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

  double time = unknown;                 ///< seconds of a monotonic clock
  double busy = unknown;                 ///< counter: seconds of all cores of the node that were not idle
  double available = unknown;            ///< counter: seconds of all cores of the node
  double job_processor = unknown;        ///< counter: seconds of cores that the job's processes used
  double job_cores = unknown;            ///< cores that the job may use: affinity, and quota of its control groups
  double memory_used = unknown;          ///< bytes of the node, or of the job's control group where that has a limit
  double memory_limit = unknown;         ///< bytes of the node, or that limit
  double job_memory = unknown;           ///< resident bytes of the job's processes
  double job_memory_peak = unknown;      ///< sum of their maxima
  double disk_read = unknown;            ///< counter: bytes that the job's processes read from storage
  double disk_written = unknown;         ///< counter
  double disk_free = unknown;            ///< bytes
  double network_received = unknown;     ///< counter: bytes of the node
  double network_sent = unknown;         ///< counter
  double infiniband_received = unknown;  ///< counter: bytes of the node
  double infiniband_sent = unknown;      ///< counter
  double joules = unknown;               ///< counter: energy of the node since the first sample; see EnergyMeter
};

/// All but the energy.
NodeSample sample_node(const NodeScope& scope);

/// Values at `after`, and rates since `before`: "cpu_percent", "disk_free_bytes", ... Unknown ones are left out.
std::vector<NamedValue> node_values(const NodeSample& before, const NodeSample& after);

struct NodeMonitorOptions {
  NodeScope scope;
  std::vector<std::string> gpus;  ///< bus addresses of the job's GPUs on this node
  double period = 1;              ///< seconds between samples
};

/// Thread that samples the use of a node once in a while, so that nobody else waits for the file system or the driver.
class NodeMonitor {
 public:
  explicit NodeMonitor(NodeMonitorOptions options);
  ~NodeMonitor();
  NodeMonitor(const NodeMonitor&) = delete;
  NodeMonitor& operator=(const NodeMonitor&) = delete;

  /// Returns the values since the last call that returned some, of GPUs the means of the samples; none if there is no
  /// new sample. Does not wait for one.
  std::vector<NamedValue> take();

 private:
  void work();

  struct Mean {
    double sum = 0;
    int64_t count = 0;
  };
  NodeMonitorOptions options_;
  std::mutex mutex_;
  std::condition_variable stopped_;
  bool stop_ = false;
  bool fresh_ = false;  ///< true if there is a sample that no call has returned
  NodeSample taken_, last_;
  std::map<std::string, Mean> gpus_;
  std::thread thread_;
};

}  // namespace llmtrain
