#pragma once
// The seam for tests that let numbers go wrong. The program leaves it empty.

#include <cstdint>

#include "core/exact_sum.hpp"
#include "params/param_store.hpp"

namespace llmtrain {

/// A step whose gradients are summed and of which nothing has been decided yet, on one rank.
struct StepUnderWay {
  int64_t step;       ///< from 0
  int64_t data_step;  ///< of the data that it took
  int rank;
  ParamStore& params;     ///< shard().gradient holds this rank's part
  ExactSum& loss;         ///< of this rank's micro-batches
  double& learning_rate;  ///< of the update
};

/// Called on every rank in every step, where it is not null.
inline void (*step_hook)(const StepUnderWay&) = nullptr;

/// Called on every rank before each piece of an evaluation or of samples during training.
inline void (*poll_hook)(bool evaluation, int rank) = nullptr;

}  // namespace llmtrain
