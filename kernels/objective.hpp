#pragma once
// Derivatives of training objectives with respect to token statistics.

#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// Cross-entropy, the sum of -weight * logp, times the scale: dlogp = -scale * weight. fp32 [N]; scale fp32 [1] on the
/// device, from which a recorded pass reads the scale of the current step, or empty for 1.
void cross_entropy_cotangents(const Tensor& dlogp, const Tensor& loss_weights, const Tensor& scale, Stream& stream);

}  // namespace llmtrain
