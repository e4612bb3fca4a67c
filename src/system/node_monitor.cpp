#include "system/node_monitor.hpp"

#include <chrono>
#include <cmath>
#include <exception>
#include <system_error>
#include <utility>

namespace llmtrain {

NodeMonitor::NodeMonitor(NodeMonitorOptions options) : options_(std::move(options)) {
  try {
    thread_ = std::thread([this] {
      try {
        work();
      } catch (const std::exception&) {  // without memory there are no further samples
      }
    });
  } catch (const std::system_error&) {  // without threads there are none at all
  }
}

NodeMonitor::~NodeMonitor() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopped_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void NodeMonitor::work() {
  const GpuUsage gpus(options_.gpus);
  std::unique_lock lock(mutex_);
  while (!stop_) {
    lock.unlock();
    const NodeSample sample = sample_node(options_.scope);
    const std::vector<NamedValue> of_gpus = gpus.sample();
    lock.lock();
    const bool first = std::isnan(taken_.time);
    if (first) taken_ = sample;
    last_ = sample;
    fresh_ = !first;
    for (const NamedValue& value : of_gpus) {
      Mean& mean = gpus_[value.name];
      mean.sum += value.value;
      ++mean.count;
    }
    stopped_.wait_for(lock, std::chrono::duration<double>(options_.period), [this] { return stop_; });
  }
}

std::vector<NamedValue> NodeMonitor::take() {
  const std::lock_guard lock(mutex_);
  if (!fresh_) return {};
  fresh_ = false;
  std::vector<NamedValue> values = node_values(taken_, last_);
  taken_ = last_;
  for (const auto& [name, mean] : std::exchange(gpus_, {})) {
    values.push_back({name, {}, mean.sum / static_cast<double>(mean.count)});
  }
  return values;
}

}  // namespace llmtrain
