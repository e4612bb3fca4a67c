#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "metrics/records.hpp"

namespace llmtrain {

/// Sums since the last console line.
struct StepInterval {
  int64_t steps = 0;
  int64_t tokens = 0;
  int64_t processed = 0;  ///< tokens of the passes
  int64_t left_out = 0;   ///< tokens of bad steps
  int64_t sequences = 0;
  double loss = 0;  ///< sum over good steps, weighted by tokens
  double seconds = 0;
  StepRecord::Phases phases;
  std::vector<double> grad_norms;  ///< never more than it has room for: steps allocate nothing

  /// Keeps the memory.
  void clear() {
    std::vector<double> room = std::move(grad_norms);
    room.clear();
    *this = {};
    grad_norms = std::move(room);
  }
  void add(const StepRecord& r) {
    ++steps;
    if (grad_norms.size() < grad_norms.capacity()) grad_norms.push_back(r.grad_norm);
    tokens += r.tokens;
    processed += r.processed > 0 ? r.processed : r.tokens;
    sequences += r.sequences;
    if (r.bad_steps > 0) {
      left_out += r.tokens;
    } else if (r.tokens > 0) {
      loss += r.loss * static_cast<double>(r.tokens);
    }
    seconds += r.seconds;
    phases.data += r.phases.data;
    phases.forward_backward += r.phases.forward_backward;
    phases.reduction += r.phases.reduction;
    phases.optimizer += r.phases.optimizer;
  }
  /// NaN if no token counts: there was no target, or no step was good.
  double mean_loss() const {
    return left_out == tokens ? std::numeric_limits<double>::quiet_NaN()
                              : loss / static_cast<double>(tokens - left_out);
  }
  double rate() const { return static_cast<double>(processed) / std::max(seconds, 1e-9); }
};

}  // namespace llmtrain
