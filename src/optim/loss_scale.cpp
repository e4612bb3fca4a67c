#include "optim/loss_scale.hpp"

#include <algorithm>
#include <cmath>

namespace llmtrain {

LossScaler::LossScaler(const PrecisionConfig& config)
    : config_(config),
      active_(config.compute == PrecisionConfig::Compute::fp16),
      dynamic_(active_ && config.loss_scale == PrecisionConfig::dynamic) {
  if (active_) state_.scale = dynamic_ ? config.initial_loss_scale : config.loss_scale;
  state_.overflows_left = config.loss_scale_hysteresis;
}

float LossScaler::cotangent(double tokens) const { return active_ ? static_cast<float>(state_.scale / tokens) : 1.0f; }

double LossScaler::divisor(double tokens) const { return double{cotangent(tokens)} * tokens; }

bool LossScaler::update(bool overflow) {
  if (!dynamic_) return false;
  LossScaleState& s = state_;
  if (!overflow) {
    if (++s.clean_steps < config_.loss_scale_window) return false;
    s.clean_steps = 0;
    s.overflows_left = config_.loss_scale_hysteresis;
    if (std::isfinite(static_cast<float>(2 * s.scale))) s.scale *= 2;
    return false;
  }
  s.clean_steps = 0;
  if (s.scale <= config_.min_loss_scale) return false;
  ++s.skipped_steps;
  if (s.overflows_left > 1) {
    --s.overflows_left;
  } else {
    s.scale = std::max(s.scale / 2, config_.min_loss_scale);
  }
  return true;
}

void LossScaler::restore(const LossScaleState& state) {
  const double fixed = state_.scale;
  state_ = state;
  if (!dynamic_) state_.scale = fixed;
  state_.overflows_left = std::min(state.overflows_left, config_.loss_scale_hysteresis);
  if (dynamic_) state_.scale = std::max(state.scale, config_.min_loss_scale);
}

}  // namespace llmtrain
