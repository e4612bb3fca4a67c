// Updates on the device, which is the host: those of kernels/host_*.cpp, as the decision of a step wants them.

#include <optional>

#include "kernels/adamw_8bit.hpp"
#include "kernels/momentum_update.hpp"
#include "kernels/step_decision.hpp"

namespace llmtrain {

namespace {

/// Returns an optimizer's step with the decision's factor on gradients; nothing if no update takes place.
template <class Step>
std::optional<Step> decided(Step step) {
  const StepDecision* decision = decision_in(step.decision);
  if (decision == nullptr) return step;
  if (decision->applies == 0) return std::nullopt;
  step.gradient_scale = decision->factor;
  step.decision = {};
  return step;
}

}  // namespace

void adamw_update(const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& gradient, const Tensor& weights,
                  const AdamwStep& step, Stream& /*stream*/) {
  if (const auto own = decided(step)) adamw_update_on_host(master, m, v, gradient, weights, *own);
}

void adamw_8bit_update(const Adamw8bitTensors& tensors, const AdamwStep& step, Stream& /*stream*/) {
  if (const auto own = decided(step)) adamw_8bit_update_on_host(tensors, *own);
}

void momentum_update(const UpdateTensors& tensors, const SgdStep& step, Stream& /*stream*/) {
  if (const auto own = decided(step)) momentum_update_on_host(tensors, *own);
}

void momentum_update(const UpdateTensors& tensors, const LionStep& step, Stream& /*stream*/) {
  if (const auto own = decided(step)) momentum_update_on_host(tensors, *own);
}

}  // namespace llmtrain
