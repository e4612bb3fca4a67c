#pragma once
// Forward passes of a model over the sequences of a rollout.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "data/stream/data_stream.hpp"
#include "parallel/job/runtime.hpp"
#include "roles/model_set.hpp"
#include "rollout/batches.hpp"

namespace llmtrain {

/// Objects that a rollout works with.
struct SamplingContext {
  ModelSet& models;
  Arena& arena;
  Runtime& runtime;
  SharedRows& rows;
  std::span<const int32_t> stop_ids;              ///< tokens that end a completion
  std::function<void(const std::string&)> print;  ///< for lines of progress
  std::function<void(const std::string&)> warn;
  /// Collective callback: returns true to stop.
  std::function<bool()> interrupted;
};

/// A pass over all sequences, which gives each of them numbers of its last rows.
struct ScoringPass {
  std::function<void(const MicroBatchPlan&, HostBatch&)> load;     ///< a segment for each sequence
  std::function<void(const Batch* batch, const Tensor&)> compute;  ///< numbers fp32 [N]; a null batch is an idle pass
  std::function<int64_t(const RolloutSequence&)> count;            ///< of these rows
  std::function<void(RolloutSequence&, std::vector<float>)> keep;  ///< called on every rank for all sequences
};

class RolloutScorer {
 public:
  /// Registers memory for batches of these sequences.
  void plan(Arena& arena, const RolloutBatches& batches);
  /// Divides the sequences among the data ranks. Returns false if it was interrupted. Collective.
  bool run(const SamplingContext& context, RolloutBatches& batches, const ScoringPass& pass);

 private:
  void score(const SamplingContext& context, const RolloutBatches& batches, const MicroBatchPlan& plan,
             const ScoringPass& pass, Message& message);

  BatchBuffers buffers_;
  Tensor numbers_;  ///< fp32 [rows]
  HostBatch host_;
};

}  // namespace llmtrain
