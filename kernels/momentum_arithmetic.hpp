#pragma once
// Arithmetic of the updates in momentum_update.hpp, shared by both devices. Each operation is rounded as PyTorch's is;
// an addition of a multiple is one fma, as in its vectorised loops.

#include <cmath>

#include "core/host_device.hpp"
#include "kernels/momentum_update.hpp"
#include "kernels/rounded_product.hpp"

namespace llmtrain {

struct SgdFactors {
  explicit SgdFactors(const SgdStep& s)
      : minus_rate(static_cast<float>(-s.learning_rate)),
        momentum(static_cast<float>(s.momentum)),
        decay(static_cast<float>(s.weight_decay)),
        scale(static_cast<float>(s.gradient_scale)),
        nesterov(s.nesterov) {}
  float minus_rate, momentum, decay, scale;
  float one = 1;  ///< not a constant, so that no compiler makes fma(m, momentum, gradient) of the sum
  bool nesterov;

  LLMTRAIN_HOST_DEVICE void update(float& p, float& m, float g) const {
    const float gradient = std::fma(p, decay, rounded_product(g, scale));
    m = std::fma(gradient, one, rounded_product(m, momentum));
    p = std::fma(nesterov ? std::fma(m, momentum, gradient) : m, minus_rate, p);
  }
};

struct LionFactors {
  explicit LionFactors(const LionStep& s)
      : minus_rate(static_cast<float>(-s.learning_rate)),
        decay(static_cast<float>(1.0 - s.learning_rate * s.weight_decay)),
        beta1(static_cast<float>(s.beta1)),
        beta2(static_cast<float>(s.beta2)),
        rest1(static_cast<float>(1.0 - s.beta1)),
        rest2(static_cast<float>(1.0 - s.beta2)),
        scale(static_cast<float>(s.gradient_scale)) {}
  float minus_rate, decay, beta1, beta2, rest1, rest2, scale;

  LLMTRAIN_HOST_DEVICE void update(float& p, float& m, float g) const {
    const float gradient = rounded_product(g, scale);
    const float direction = std::fma(gradient, rest1, rounded_product(m, beta1));
    const float sign = direction > 0 ? 1.0f : direction < 0 ? -1.0f : 0.0f;
    p = std::fma(sign, minus_rate, rounded_product(p, decay));
    m = std::fma(gradient, rest2, rounded_product(m, beta2));
  }
};

inline void check_update(const UpdateTensors& t) {
  const int64_t n = t.master.numel();
  LLMTRAIN_CHECK(t.gradient.numel() == n && (t.momentum.empty() || t.momentum.numel() == n),
                 "the tensors of an update must have equal sizes");
  LLMTRAIN_CHECK(t.weights.empty() || t.weights.numel() == n, "one weight per element");
}

}  // namespace llmtrain
