#pragma once
// The arithmetic of objectives, the same on every device.

#include <cmath>

#include "core/host_device.hpp"
#include "kernels/logprob_checks.hpp"
#include "kernels/objective.hpp"

namespace llmtrain {

struct ProbabilityWeights {
  float* out;
  const float *logp, *weights;

  ProbabilityWeights(const Tensor& out_weights, const Tensor& log_probabilities, const Tensor& loss_weights)
      : out(out_weights.as<float>()), logp(log_probabilities.as<float>()), weights(loss_weights.as<float>()) {
    const int64_t n = out_weights.numel();
    LLMTRAIN_CHECK(log_probabilities.numel() == n && loss_weights.numel() == n, "one weight per token");
  }
  LLMTRAIN_HOST_DEVICE void operator()(int64_t i) const { out[i] = weights[i] * std::exp(logp[i]); }
};

struct TokenTerms {
  AuxiliaryTerms terms;
  const float *logp, *lse, *uniform, *entropy;
  float *loss, *z_loss, *label_smoothing;

  TokenTerms(const AuxiliaryTerms& t, const TokenStatistics& s, const TokenLosses& out)
      : terms(t),
        logp(s.logp.as<float>()),
        lse(data_or_null<float>(s.lse)),
        uniform(data_or_null<float>(s.uniform)),
        entropy(data_or_null<float>(s.entropy)),
        loss(data_or_null<float>(out.loss)),
        z_loss(data_or_null<float>(out.z_loss)),
        label_smoothing(data_or_null<float>(out.label_smoothing)) {
    LLMTRAIN_CHECK((t.z_loss == 0 || lse != nullptr) && (t.label_smoothing == 0 || uniform != nullptr) &&
                       (t.entropy_bonus == 0 || entropy != nullptr),
                   "a term without its statistic");
  }

  /// A row's terms.
  LLMTRAIN_HOST_DEVICE void operator()(int64_t i) const {
    const float z = terms.z_loss != 0 ? terms.z_loss * lse[i] * lse[i] : 0.0f;
    const float smoothing = terms.label_smoothing != 0 ? terms.label_smoothing * (uniform[i] + logp[i]) : 0.0f;
    const float bonus = terms.entropy_bonus != 0 ? terms.entropy_bonus * entropy[i] : 0.0f;
    if (loss != nullptr) loss[i] = z + smoothing - bonus - logp[i];
    if (z_loss != nullptr) z_loss[i] = z;
    if (label_smoothing != nullptr) label_smoothing[i] = smoothing;
  }
};

}  // namespace llmtrain
