#include "kernels/adamw_8bit.hpp"

#include "kernels/step_decision.hpp"

namespace llmtrain {

void adamw_8bit_update(const Adamw8bitTensors& tensors, const AdamwStep& step, Stream& /*stream*/) {
  AdamwStep decided = step;
  if (const StepDecision* decision = decision_in(step.decision)) {
    if (decision->applies == 0) return;
    decided.gradient_scale = decision->factor;
    decided.decision = {};
  }
  adamw_8bit_update_on_host(tensors, decided);
}

}  // namespace llmtrain
