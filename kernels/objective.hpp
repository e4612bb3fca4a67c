#pragma once
// Derivatives of training objectives with respect to token statistics.

#include "core/tensor.hpp"
#include "device/device.hpp"
#include "kernels/logprob.hpp"

namespace llmtrain {

/// Cross-entropy, the sum of -weight * logp, times the scale: dlogp = -scale * weight. fp32 [N]; scale fp32 [1] on the
/// device, from which a recorded pass reads the scale of the current step, or empty for 1.
void cross_entropy_cotangents(const Tensor& dlogp, const Tensor& loss_weights, const Tensor& scale, Stream& stream);

/// out = weight * exp(logp): loss weights times the probabilities of the targets. fp32 [N].
void probability_weights(const Tensor& out, const Tensor& logp, const Tensor& loss_weights, Stream& stream);

/// Coefficients of terms beside the cross-entropy: of lse^2, of the distance to the uniform distribution's
/// cross-entropy, and of the entropy, which is subtracted.
struct AuxiliaryTerms {
  float z_loss = 0;
  float label_smoothing = 0;
  float entropy_bonus = 0;
};

/// Terms of each token's loss, fp32 [N]; empty ones are not computed.
struct TokenLosses {
  Tensor loss;             ///< -logp + z_loss + label_smoothing - entropy_bonus H
  Tensor z_loss;           ///< z_loss lse^2
  Tensor label_smoothing;  ///< label_smoothing (uniform + logp)
};
/// The statistics are those that terms with a coefficient need.
void auxiliary_losses(const TokenLosses& losses, const AuxiliaryTerms& terms, const TokenStatistics& statistics,
                      Stream& stream);
/// The derivatives of the weighted sum of losses times the scale, as cross_entropy_cotangents.
void auxiliary_cotangents(const TokenCotangents& out, const AuxiliaryTerms& terms, const Tensor& loss_weights,
                          const Tensor& scale, Stream& stream);

}  // namespace llmtrain
