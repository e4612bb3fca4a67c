#pragma once
// Scaling of the loss, so that gradients of fp16 activations neither vanish nor overflow (Micikevicius et al. 2018).
// The scaled loss is the mean over the step's tokens times the scale. Bookkeeping without communication: it is told a
// verdict that is exact, and so the same on all ranks.

#include <cstdint>

#include "optim/precision_config.hpp"

namespace llmtrain {

/// What checkpoints hold.
struct LossScaleState {
  double scale = 1;
  int64_t clean_steps = 0;     ///< in a row, since the scale changed or a gradient overflowed
  int64_t overflows_left = 1;  ///< until the scale falls
  int64_t skipped_steps = 0;   ///< in the history of the state
};

/// torch.amp.GradScaler's rules, with the hysteresis and the least scale of DeepSpeed and Megatron-LM: after
/// loss_scale_window steps in a row without overflow the scale doubles and the hysteresis is whole again; the overflow
/// that uses it up, and each one after it, halves the scale.
class LossScaler {
 public:
  explicit LossScaler(const PrecisionConfig& config);

  /// Whether there is anything to scale: with fp16.
  bool active() const { return active_; }
  /// Of the step that comes.
  double scale() const { return state_.scale; }
  /// Factor on the derivative of a token's loss in a step of so many trained tokens.
  float cotangent(double tokens) const;
  /// What sums of gradients are divided by to be those of the mean loss.
  double divisor(double tokens) const;

  /// Counts a step. Gives whether it is to be skipped and the run goes on with a scale that may fit: false of clean
  /// steps, and where the scale cannot fall.
  bool update(bool overflow);
  int64_t skipped_steps() const { return state_.skipped_steps; }

  const LossScaleState& state() const { return state_; }
  /// As far as the configuration has not decided otherwise.
  void restore(const LossScaleState& state);

 private:
  PrecisionConfig config_;
  bool active_, dynamic_;
  LossScaleState state_;
};

}  // namespace llmtrain
