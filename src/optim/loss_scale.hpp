#pragma once
// Loss scaling, so that gradients of fp16 activations neither vanish nor overflow (Micikevicius et al. 2018). The
// scaled loss is the mean over the step's tokens times the scale. The class does not communicate: its inputs are exact,
// and so the same on all ranks.

#include <cstdint>

#include "optim/precision_config.hpp"

namespace llmtrain {

/// State in checkpoints.
struct LossScaleState {
  double scale = 1;
  int64_t clean_steps = 0;     ///< consecutive steps without overflow, since the scale changed
  int64_t overflows_left = 1;  ///< number until the scale falls
  int64_t skipped_steps = 0;   ///< total since the start of the run
};

/// Rules of torch.amp.GradScaler, with the hysteresis and the minimum scale of DeepSpeed and Megatron-LM: after
/// loss_scale_window consecutive steps without overflow the scale doubles and the hysteresis is reset; the overflow
/// that uses it up, and each one after it, halves the scale.
class LossScaler {
 public:
  explicit LossScaler(const PrecisionConfig& config);

  /// True if loss scaling is on: with fp16.
  bool active() const { return active_; }
  /// Scale of the next step.
  double scale() const { return state_.scale; }
  /// Factor on the derivative of a token's loss in a step of this many trained tokens.
  float cotangent(double tokens) const;
  /// Divisor that turns sums of gradients into those of the mean loss.
  double divisor(double tokens) const;

  /// Counts a step. Returns true if the step is skipped and the run continues with a smaller scale; false for steps
  /// without overflow, and if the scale cannot fall.
  bool update(bool overflow);
  int64_t skipped_steps() const { return state_.skipped_steps; }

  const LossScaleState& state() const { return state_; }
  /// Restores the state, except for what the configuration now fixes.
  void restore(const LossScaleState& state);

 private:
  PrecisionConfig config_;
  bool active_, dynamic_;
  LossScaleState state_;
};

}  // namespace llmtrain
