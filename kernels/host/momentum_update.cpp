#include "kernels/momentum_update.hpp"

#include "kernels/step_decision.hpp"

namespace llmtrain {

namespace {

/// Applies the decision; returns false if it is not to update.
template <class Step>
bool decide(Step& step) {
  const StepDecision* decision = decision_in(step.decision);
  if (decision == nullptr) return true;
  step.gradient_scale = decision->factor;
  step.decision = {};
  return decision->applies != 0;
}

}  // namespace

void momentum_update(const UpdateTensors& tensors, const SgdStep& step, Stream& /*stream*/) {
  SgdStep decided = step;
  if (decide(decided)) momentum_update_on_host(tensors, decided);
}

void momentum_update(const UpdateTensors& tensors, const LionStep& step, Stream& /*stream*/) {
  LionStep decided = step;
  if (decide(decided)) momentum_update_on_host(tensors, decided);
}

}  // namespace llmtrain
