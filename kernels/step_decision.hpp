#pragma once
// Decision whether and by what factor a step's gradients are applied, made where its sums are, without the host.

#include <cmath>

#include "core/exact_sum.hpp"
#include "core/host_device.hpp"
#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// Factor on gradients of norm `norm` (PyTorch's clip_grad_norm_): min(1, maximum / (norm + 1e-6)); 1 when maximum = 0.
LLMTRAIN_HOST_DEVICE inline double clip_factor(double norm, double maximum) {
  const double factor = maximum / (norm + 1e-6);
  return maximum > 0 && factor < 1.0 ? factor : 1.0;
}

struct StepDecision {
  double applies;  ///< 1, or 0 if loss or norm is not finite
  double factor;   ///< factor on the sums of gradients: clipping factor divided by the divisor
};

/// The decision in a tensor fp64 [2]; null for an empty one.
inline StepDecision* decision_in(const Tensor& tensor) {
  LLMTRAIN_CHECK(tensor.empty() || (tensor.dtype == DType::f64 && tensor.numel() == 2), "a decision is fp64 [2]");
  return static_cast<StepDecision*>(tensor.data);
}

/// Decides from integers that have been summed over all ranks; carries them.
LLMTRAIN_HOST_DEVICE inline StepDecision decision_of(int64_t* loss, int64_t* squares, double divisor, double maximum) {
  const double norm = std::sqrt(exact_value(squares)) / divisor;
  const bool finite = std::isfinite(exact_value(loss)) && std::isfinite(norm);
  return {finite ? 1.0 : 0.0, clip_factor(norm, maximum) / divisor};
}

/// Carries the integers before the sums of several ranks are added: sums int64 [n, ExactSum::integer_count].
void carry_sums(const Tensor& sums, Stream& stream);
/// decision: fp64 [2], a StepDecision. sums: int64 [n, ExactSum::integer_count], the loss in the first row and squared
/// gradients in the last, over all ranks, both carried by this function. divisor: that of the gradient sums; maximum:
/// the limit of their norm, 0 = none.
void decide_step(const Tensor& decision, const Tensor& sums, double divisor, double maximum, Stream& stream);

}  // namespace llmtrain
