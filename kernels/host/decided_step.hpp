#pragma once
#include <optional>

#include "kernels/step_decision.hpp"

namespace llmtrain::host {

/// Returns an optimizer's step as the decision wants it: with its factor on gradients; nothing if no update takes
/// place.
template <class Step>
std::optional<Step> decided(Step step) {
  const StepDecision* decision = decision_in(step.decision);
  if (decision == nullptr) return step;
  if (decision->applies == 0) return std::nullopt;
  step.gradient_scale = decision->factor;
  step.decision = {};
  return step;
}

}  // namespace llmtrain::host
