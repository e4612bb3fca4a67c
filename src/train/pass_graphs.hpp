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
/// equal shapes are the same work at the same addresses; what differs from step to step is not among their arguments,
/// but in the batch's buffers. Whatever does not fit that is done plainly, which is the same work and the same bits.
class PassGraphs {
 public:
  /// Why passes cannot be graphs here; empty if they can.
  static std::string refusal(bool wanted, const ModelConfig& model, const ParamStore& params);

  PassGraphs(bool used, ParamStore& params) : used_(used), params_(params) {}

  /// Does the passes: plainly the first time that a shape comes, when kernels are chosen and buffers grow; recorded the
  /// second time; from then on by a launch.
  template <class F>
  void run(const Batch& batch, Stream& stream, const F& passes) {
    ++all_;
    Graph* graph = find(batch);
    if (graph == nullptr) return passes();
    if (graph->recorded()) {
      params_.mark_passes_done();
    } else {
      record(*graph, stream, std::cref(passes));
    }
    graph->launch(stream);
    ++launched_;
  }

  int64_t recorded() const { return recorded_; }  ///< graphs
  int64_t launched() const { return launched_; }  ///< passes that one has done
  int64_t all() const { return all_; }            ///< passes

 private:
  struct Shape {
    int64_t tokens, segments, longest;
    uint64_t place;                                  ///< ParamStore::pass_key()
    auto operator<=>(const Shape&) const = default;  // NOLINT(modernize-use-nullptr): of what the compiler writes
  };
  static constexpr size_t max_shapes = 64;  ///< later ones stay plain: each graph takes memory of the device's driver

  /// The one of this shape, recorded or to be recorded now; null where the passes are to be done plainly.
  Graph* find(const Batch& batch);
  void record(Graph& graph, Stream& stream, const std::function<void()>& passes);

  bool used_;
  ParamStore& params_;
  std::map<Shape, Graph> graphs_;  ///< not recorded: of shapes that came once
  int64_t recorded_ = 0, launched_ = 0, all_ = 0;
};

}  // namespace llmtrain
