#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "device/device.hpp"

namespace llmtrain {

/// Graphs of work that comes again and again. Work of equal keys runs the same kernels at the same addresses; values
/// that differ lie in device memory. It runs plainly the first time, when kernels are selected and buffers grow, is
/// recorded the second time, and is a graph launch from then on.
class GraphPool {
 public:
  using Key = std::array<int64_t, 4>;

  /// The graph of this key, recorded or to be recorded now; null if the work runs plainly.
  Graph* find(const Key& key);
  /// Records work. False if there is no memory for the graph, as for all of them from then on: `undo` is called if the
  /// work was recorded and cannot become one.
  bool record(Graph& graph, Stream& stream, const std::function<void()>& work, const std::function<void()>& undo = {});
  /// Runs work as a graph where find() has one.
  void run(const Key& key, Stream& stream, const std::function<void()>& work);

  int64_t recorded() const { return recorded_; }  ///< number of graphs
  /// Why no more graphs are made, although there is work for them; empty: they are.
  const std::string& limit() const { return limit_; }

 private:
  static constexpr size_t max_graphs = 64;  ///< work of further keys runs plainly

  std::map<Key, Graph> graphs_;  ///< keys that came once have an unrecorded graph
  int64_t largest_ = 0;          ///< bytes of device memory that a graph took
  int64_t recorded_ = 0;
  std::string limit_;
};

}  // namespace llmtrain
