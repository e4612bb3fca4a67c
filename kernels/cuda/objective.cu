#include "kernels/cuda/launch.cuh"
#include "kernels/objective.hpp"

namespace llmtrain {

namespace {

struct Negate {
  float* out;
  const float* in;
  __device__ void operator()(int64_t i) const { out[i] = -in[i]; }
};

}  // namespace

void cross_entropy_cotangents(const Tensor& dlogp, const Tensor& loss_weights, Stream& stream) {
  const int64_t n = loss_weights.numel();
  LLMTRAIN_CHECK(dlogp.numel() == n, "one cotangent per token");
  cuda::for_each(n, stream, Negate{dlogp.as<float>(), loss_weights.as<float>()});
}

}  // namespace llmtrain
