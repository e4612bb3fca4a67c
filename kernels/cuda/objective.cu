#include "kernels/cuda/launch.cuh"
#include "kernels/objective.hpp"

namespace llmtrain {

namespace {

struct Cotangents {
  float* out;
  const float* in;
  const float* scale;
  __device__ void operator()(int64_t i) const { out[i] = scale != nullptr ? -*scale * in[i] : -in[i]; }
};

}  // namespace

void cross_entropy_cotangents(const Tensor& dlogp, const Tensor& loss_weights, const Tensor& scale, Stream& stream) {
  const int64_t n = loss_weights.numel();
  LLMTRAIN_CHECK(dlogp.numel() == n, "one cotangent per token");
  cuda::for_each(n, stream,
                 Cotangents{dlogp.as<float>(), loss_weights.as<float>(), scale.empty() ? nullptr : scale.as<float>()});
}

}  // namespace llmtrain
