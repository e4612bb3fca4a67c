#pragma once
// Thread that samples the use of a node once in a while, so that nobody else waits for the file system or the driver.

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "system/gpu_usage.hpp"
#include "system/node_sample.hpp"

namespace llmtrain {

struct NodeMonitorOptions {
  NodeScope scope;
  std::vector<std::string> gpus;  ///< bus addresses of the job's GPUs on this node
  double period = 1;              ///< seconds between samples
};

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
