#pragma once
// The arithmetic of auxiliary losses, the same on every device.

#include "core/host_device.hpp"
#include "kernels/logprob_checks.hpp"
#include "kernels/objective.hpp"

namespace llmtrain {

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
