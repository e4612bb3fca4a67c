#include "device/graph_pool.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/number_text.hpp"

namespace llmtrain {

namespace {

std::string text(int64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

}  // namespace

Graph* GraphPool::find(const Key& key) {
  const auto found = graphs_.find(key);
  if (found != graphs_.end()) return found->second.recorded() || limit_.empty() ? &found->second : nullptr;
  if (graphs_.size() < max_graphs) graphs_.try_emplace(key);
  return nullptr;
}

bool GraphPool::record(Graph& graph, Stream& stream, const std::function<void()>& work,
                       const std::function<void()>& undo) {
  // The rest of what a plan leaves free is for kernels that are loaded later, and for scratch.
  const int64_t available = device_memory().available, floor = device_reserve_bytes() / 2;
  if (available - largest_ < floor) {
    limit_ = fmt::format("{} of GPU memory are free, the largest graph took {}, and {} must stay free", text(available),
                         text(largest_), text(floor));
    return false;
  }
  graph.record(stream, work);
  if (!graph.recorded()) {
    limit_ = fmt::format("the driver has no memory for one more, with {} free", text(available));
    if (undo) undo();
    return false;
  }
  largest_ = std::max(largest_, available - device_memory().available);
  ++recorded_;
  return true;
}

void GraphPool::run(const Key& key, Stream& stream, const std::function<void()>& work) {
  Graph* const graph = find(key);
  if (graph == nullptr || (!graph->recorded() && !record(*graph, stream, work))) return work();
  graph->launch(stream);
}

}  // namespace llmtrain
