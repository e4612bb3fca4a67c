#include "kernels/cuda/launch.cuh"
#include "kernels/objective_terms.hpp"

namespace llmtrain {

namespace {

/// out = factor * scale * in
struct ScaledWeights {
  float* out;
  const float* in;
  const float* scale;
  float factor;
  __device__ void operator()(int64_t i) const { out[i] = scale != nullptr ? factor * *scale * in[i] : factor * in[i]; }
};

void scaled_weights(const Tensor& out, float factor, const Tensor& weights, const Tensor& scale, Stream& stream) {
  if (out.empty()) return;
  const int64_t n = weights.numel();
  LLMTRAIN_CHECK(out.numel() == n, "one cotangent per token");
  cuda::for_each(
      n, stream,
      ScaledWeights{out.as<float>(), weights.as<float>(), scale.empty() ? nullptr : scale.as<float>(), factor});
}

/// The arithmetic of a row.
template <class Arithmetic>
struct OfRow {
  Arithmetic of;
  __device__ void operator()(int64_t i) const { of(i); }
};

}  // namespace

void cross_entropy_cotangents(const Tensor& dlogp, const Tensor& loss_weights, const Tensor& scale, Stream& stream) {
  scaled_weights(dlogp, -1, loss_weights, scale, stream);
}

void probability_weights(const Tensor& out, const Tensor& logp, const Tensor& loss_weights, Stream& stream) {
  cuda::for_each(out.numel(), stream, OfRow<ProbabilityWeights>{ProbabilityWeights(out, logp, loss_weights)});
}

void auxiliary_cotangents(const TokenCotangents& out, const AuxiliaryTerms& terms, const Tensor& loss_weights,
                          const Tensor& scale, Stream& stream) {
  scaled_weights(out.logp, terms.label_smoothing - 1, loss_weights, scale, stream);
  scaled_weights(out.uniform, terms.label_smoothing, loss_weights, scale, stream);
  scaled_weights(out.lse_squared, terms.z_loss, loss_weights, scale, stream);
  scaled_weights(out.entropy, -terms.entropy_bonus, loss_weights, scale, stream);
}

void auxiliary_losses(const TokenLosses& losses, const AuxiliaryTerms& terms, const TokenStatistics& statistics,
                      Stream& stream) {
  cuda::for_each(statistics.logp.numel(), stream, OfRow<TokenTerms>{TokenTerms(terms, statistics, losses)});
}

}  // namespace llmtrain
