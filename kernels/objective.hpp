#pragma once
// Derivatives of training objectives with respect to token statistics.

#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// Cross-entropy, the sum of -weight * logp: dlogp = -weight. fp32 [N].
void cross_entropy_cotangents(const Tensor& dlogp, const Tensor& loss_weights, Stream& stream);

}  // namespace llmtrain
