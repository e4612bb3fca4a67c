#pragma once
// Arithmetic of adamw_update, shared by both devices, so that they give the same bits.

#include <cmath>

#include "core/host_device.hpp"
#include "kernels/adamw.hpp"
#include "kernels/rounded_product.hpp"

namespace llmtrain {

/// Constants of a step, in the precision and order in which PyTorch's single-tensor AdamW uses them.
struct AdamwFactors {
  explicit AdamwFactors(const AdamwStep& s)
      : decay(static_cast<float>(1.0 - s.learning_rate * s.weight_decay)),
        beta2(static_cast<float>(s.beta2)),
        rest1(static_cast<float>(1.0 - s.beta1)),
        rest2(static_cast<float>(1.0 - s.beta2)),
        minus_size(static_cast<float>(-s.learning_rate / (1.0 - std::pow(s.beta1, static_cast<double>(s.step))))),
        root2(static_cast<float>(std::sqrt(1.0 - std::pow(s.beta2, static_cast<double>(s.step))))),
        epsilon(static_cast<float>(s.epsilon)),
        scale(static_cast<float>(s.gradient_scale)) {}
  float decay, beta2, rest1, rest2, minus_size, root2, epsilon, scale;

  /// Updates one element. Sums of products are written as fma, so that every element has the same arithmetic.
  LLMTRAIN_HOST_DEVICE void update(float& p, float& m, float& v, float g) const {
    const float gradient = rounded_product(g, scale);
    m = std::fma(rest1, gradient - m, m);
    v = std::fma(rest2 * gradient, gradient, v * beta2);
    p = std::fma(p, decay, minus_size * m / (std::sqrt(v) / root2 + epsilon));
  }
};

}  // namespace llmtrain
