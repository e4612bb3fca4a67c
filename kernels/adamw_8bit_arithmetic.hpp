#pragma once
// Arithmetic of adamw_8bit_update, shared by both devices, so that they give the same bits.

#include <cmath>

#include "core/error.hpp"
#include "core/params.hpp"
#include "kernels/adamw_8bit.hpp"
#include "kernels/dynamic_map.hpp"
#include "kernels/rounded_product.hpp"

namespace llmtrain {

struct Adamw8bitFactors {
  explicit Adamw8bitFactors(const AdamwStep& s)
      : Adamw8bitFactors(s, 1.0 - std::pow(s.beta1, static_cast<double>(s.step)),
                         std::sqrt(1.0 - std::pow(s.beta2, static_cast<double>(s.step)))) {}
  float decay, beta1, beta2, rest1, rest2, minus_size, epsilon, scale;

  /// Updates one element, whose moments are those of the step before.
  LLMTRAIN_HOST_DEVICE void update(float& p, float& m, float& v, float g, bool decays) const {
    const float gradient = rounded_product(g, scale);
    if (!(std::fabs(gradient) <= 3.402823466e38f)) {
      m = v = 0;
      return;
    }
    m = std::fma(rest1, gradient, rounded_product(m, beta1));
    v = std::fma(rest2 * gradient, gradient, rounded_product(v, beta2));
    p = std::fma(minus_size, m / (std::sqrt(v) + epsilon), p);
    if (decays) p = rounded_product(p, decay);
  }
  /// A code of the signed map, or the one beside it if its level has another sign than m: zero, code 127, is positive.
  LLMTRAIN_HOST_DEVICE static uint8_t with_sign_of(uint8_t code, float m) {
    if ((code < 127) == std::signbit(m)) return code;
    return static_cast<uint8_t>(m > 0 ? code + 1 : code - 1);
  }
  /// The moment over the largest one of its chunk, which the map has a code for.
  LLMTRAIN_HOST_DEVICE static float ratio(float moment, float largest) { return largest > 0 ? moment / largest : 0.0f; }

 private:
  Adamw8bitFactors(const AdamwStep& s, double correction1, double correction2)
      : decay(static_cast<float>(1.0 - s.learning_rate * s.weight_decay)),
        beta1(static_cast<float>(s.beta1)),
        beta2(static_cast<float>(s.beta2)),
        rest1(static_cast<float>(1.0 - s.beta1)),
        rest2(static_cast<float>(1.0 - s.beta2)),
        minus_size(static_cast<float>(-s.learning_rate * correction2 / correction1)),
        epsilon(static_cast<float>(s.epsilon * correction2)),
        scale(static_cast<float>(s.gradient_scale)) {}
};

inline void check_update(const Adamw8bitTensors& t) {
  const int64_t n = t.master.numel(), chunks = n / chunk_elements;
  LLMTRAIN_CHECK(n % chunk_elements == 0 && t.m.numel() == n && t.v.numel() == n && t.gradient.numel() == n &&
                     t.m_scale.numel() == chunks && t.v_scale.numel() == chunks,
                 "the tensors of an update must have equal numbers of chunks");
  LLMTRAIN_CHECK(t.weights.empty() || t.weights.numel() == n, "one weight per element");
}

}  // namespace llmtrain
