#include "kernels/objective.hpp"

#include "kernels/objective_terms.hpp"

namespace llmtrain {

namespace {

/// out = factor * weights, unless out is empty.
void scaled_weights(const Tensor& out, float factor, const Tensor& weights) {
  if (out.empty()) return;
  LLMTRAIN_CHECK(out.numel() == weights.numel(), "one cotangent per token");
  float* to = out.as<float>();
  const float* from = weights.as<float>();
  for (int64_t i = 0; i < weights.numel(); ++i) to[i] = factor * from[i];
}

}  // namespace

void cross_entropy_cotangents(const Tensor& dlogp, const Tensor& loss_weights, const Tensor& scale,
                              Stream& /*stream*/) {
  scaled_weights(dlogp, -(scale.empty() ? 1.0f : *scale.as<float>()), loss_weights);
}

void probability_weights(const Tensor& out, const Tensor& logp, const Tensor& loss_weights, Stream& /*stream*/) {
  const ProbabilityWeights weigh(out, logp, loss_weights);
  for (int64_t i = 0; i < out.numel(); ++i) weigh(i);
}

void auxiliary_cotangents(const TokenCotangents& out, const AuxiliaryTerms& terms, const Tensor& loss_weights,
                          const Tensor& scale, Stream& /*stream*/) {
  const float factor = scale.empty() ? 1.0f : *scale.as<float>();
  scaled_weights(out.logp, -factor * (1 - terms.label_smoothing), loss_weights);
  scaled_weights(out.uniform, factor * terms.label_smoothing, loss_weights);
  scaled_weights(out.lse_squared, factor * terms.z_loss, loss_weights);
  scaled_weights(out.entropy, -factor * terms.entropy_bonus, loss_weights);
}

void auxiliary_losses(const TokenLosses& losses, const AuxiliaryTerms& terms, const TokenStatistics& statistics,
                      Stream& /*stream*/) {
  const TokenTerms of(terms, statistics, losses);
  for (int64_t i = 0; i < statistics.logp.numel(); ++i) of(i);
}

}  // namespace llmtrain
