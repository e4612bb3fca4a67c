#pragma once
// Hook for tests that corrupt numbers. The program leaves it empty.

#include <cstdint>

#include "core/exact_sum.hpp"
#include "params/param_store.hpp"

namespace llmtrain {

/// A step on one rank, after the gradients are summed and before any decision.
struct StepUnderWay {
  int64_t step;       ///< from 0
  int64_t data_step;  ///< step of the data stream
  int rank;
  ParamStore& params;     ///< shard().gradient holds this rank's part
  ExactSum& loss;         ///< loss of this rank's micro-batches
  double& learning_rate;  ///< learning rate of the update
  Stream& stream;         ///< of the gradients
};

/// Called on every rank in every step if not null.
inline void (*step_hook)(const StepUnderWay&) = nullptr;

/// Called on every rank in each micro-batch of a step if not null.
inline void (*pass_hook)(int rank) = nullptr;

/// Called on every rank before each unit of work of an evaluation or of samples during training.
inline void (*stop_poll_hook)(bool evaluation, int rank) = nullptr;

}  // namespace llmtrain
