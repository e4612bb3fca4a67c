#include "kernels/objective.hpp"

namespace llmtrain {

void cross_entropy_cotangents(const Tensor& dlogp, const Tensor& loss_weights, const Tensor& scale,
                              Stream& /*stream*/) {
  const int64_t n = loss_weights.numel();
  LLMTRAIN_CHECK(dlogp.numel() == n, "one cotangent per token");
  const float factor = scale.empty() ? 1.0f : *scale.as<float>();
  float* out = dlogp.as<float>();
  const float* weights = loss_weights.as<float>();
  for (int64_t i = 0; i < n; ++i) out[i] = -factor * weights[i];
}

}  // namespace llmtrain
