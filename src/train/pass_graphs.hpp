#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "core/batch.hpp"
#include "device/graph_pool.hpp"
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

  int64_t recorded() const { return pool_.recorded(); }  ///< number of graphs
  int64_t launched() const { return launched_; }         ///< number of passes that a graph ran
  int64_t all() const { return all_; }                   ///< number of passes
  /// Why no more graphs are made, although there are shapes for them; empty: they are.
  const std::string& limit() const { return pool_.limit(); }

 private:
  /// Returns the graph of this shape, recorded or to be recorded now; null if the passes run without one.
  Graph* find(const Batch& batch);
  /// False if there is no memory for the graph, as for all graphs from then on.
  bool record(Graph& graph, Stream& stream, const std::function<void()>& passes);

  bool used_;
  ParamStore& params_;
  GraphPool pool_;  ///< by shape, and by ParamStore::pass_key()
  int64_t launched_ = 0, all_ = 0;
};

}  // namespace llmtrain
