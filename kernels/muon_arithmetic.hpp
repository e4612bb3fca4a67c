#pragma once
// Arithmetic of muon.hpp, shared by both devices.

#include <cmath>
#include <initializer_list>

#include "core/dtype.hpp"
#include "core/exact_sum.hpp"
#include "core/host_device.hpp"
#include "kernels/muon.hpp"
#include "kernels/rounded_product.hpp"

namespace llmtrain {

/// torch.lerp: from the nearer end.
struct Lerp {
  explicit Lerp(double w) : near(std::fabs(static_cast<float>(w)) < 0.5F), weight(static_cast<float>(w)) {
    if (!near) weight -= 1;
  }
  bool near;
  float weight;

  LLMTRAIN_HOST_DEVICE float operator()(float from, float to) const {
    return std::fma(weight, to - from, near ? from : to);
  }
};

struct MuonMomentumFactors {
  explicit MuonMomentumFactors(const MuonMomentum& s)
      : average(1 - s.momentum),
        look_ahead(s.momentum),
        nesterov(s.nesterov),
        scale(static_cast<float>(s.gradient_scale)) {}
  Lerp average, look_ahead;
  bool nesterov;
  float scale;

  /// Updates m, and returns the update.
  LLMTRAIN_HOST_DEVICE float operator()(float& m, float g) const {
    const float gradient = rounded_product(g, scale);
    m = average(m, gradient);
    return nesterov ? look_ahead(gradient, m) : m;
  }
};

/// Carries the integers of a sum.
LLMTRAIN_HOST_DEVICE inline float muon_divisor(int64_t* squares, float epsilon) {
  const auto norm = static_cast<float>(bf16(static_cast<float>(std::sqrt(exact_value(squares)))));
  const auto least = static_cast<float>(bf16(epsilon));
  return norm < least ? least : norm;  // a NaN stays one
}
inline int64_t* integers_of(const Tensor& sum) {
  LLMTRAIN_CHECK(sum.dtype == DType::i64 && sum.numel() == ExactSum::integer_count, "a sum is an ExactSum's integers");
  return sum.as<int64_t>();
}

inline void check_muon(const Tensor& rounded, std::initializer_list<const Tensor*> others) {
  LLMTRAIN_CHECK(rounded.dtype == DType::bf16, "Muon orthogonalises in bf16");
  for (const Tensor* t : others) {
    LLMTRAIN_CHECK(t->dtype == DType::f32 && t->numel() == rounded.numel(), "fp32, as many elements as the update");
  }
}

}  // namespace llmtrain
