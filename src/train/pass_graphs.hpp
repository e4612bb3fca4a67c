#pragma once
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "core/batch.hpp"
#include "device/device.hpp"
#include "models/model_config.hpp"
#include "params/param_store.hpp"

namespace llmtrain {

/// Forward and backward passes of micro-batches as graphs of the device: hundreds of kernels in one launch. Passes of
/// equal shapes do the same work at the same addresses; values that change from step to step are not kernel arguments,
/// but lie in device memory: those of the batch, and the step for keys of dropout. All other passes run without a
/// graph, with the same work and the same bits.
class PassGraphs {
 public:
  /// Returns why passes cannot be graphs here; empty if they can.
  static std::string refusal(bool wanted, const ModelConfig& model, const ParamStore& params);

  PassGraphs(bool used, ParamStore& params) : used_(used), params_(params) {}

  /// Runs the passes: without a graph for the first pass of a shape, when kernels are selected and buffers grow;
  /// recorded for the second; by a graph launch from then on.
  template <class F>
  void run(const Batch& batch, Stream& stream, const F& passes) {
    ++all_;
    Graph* graph = find(batch);
    if (graph == nullptr) return passes();
    if (graph->recorded()) {
      params_.mark_passes_done();
    } else if (!record(*graph, stream, std::cref(passes))) {
      return passes();
    }
    graph->launch(stream);
    ++launched_;
  }

  int64_t recorded() const { return recorded_; }  ///< number of graphs
  int64_t launched() const { return launched_; }  ///< number of passes that a graph ran
  int64_t all() const { return all_; }            ///< number of passes
  /// Why no more graphs are made, although there are shapes for them; empty: they are.
  const std::string& limit() const { return limit_; }

 private:
  struct Shape {
    int64_t tokens, segments, longest;
    uint64_t place;                                  ///< ParamStore::pass_key()
    auto operator<=>(const Shape&) const = default;  // NOLINT(modernize-use-nullptr): of what the compiler writes
  };
  static constexpr size_t max_shapes = 64;  ///< further shapes run without a graph

  /// Returns the graph of this shape, recorded or to be recorded now; null if the passes run without one.
  Graph* find(const Batch& batch);
  /// False if there is no memory for the graph, as for all graphs from then on.
  bool record(Graph& graph, Stream& stream, const std::function<void()>& passes);

  bool used_;
  ParamStore& params_;
  std::map<Shape, Graph> graphs_;  ///< shapes that occurred once have an unrecorded graph
  int64_t largest_ = 0;            ///< bytes of device memory that a graph took
  std::string limit_;
  int64_t recorded_ = 0, launched_ = 0, all_ = 0;
};

}  // namespace llmtrain
