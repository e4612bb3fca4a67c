#pragma once
// From logits to token statistics and back, for a block of rows. The full logits of a batch never exist.

#include "core/batch.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// Per-row outputs, fp32 [R] (argmax int32 [R]); empty ones are not computed. Rows with ignore_target get logp = 0.
struct TokenStatistics {
  Tensor logp;     ///< log softmax at the target
  Tensor lse;      ///< log sum exp of the logits
  Tensor entropy;  ///< of the softmax, nats
  Tensor argmax;   ///< lowest index among equals
};

/// x = cap tanh(x / cap) in place, fp32 (Gemma 2).
void softcap_logits(const Tensor& logits, float cap, Stream& stream);

/// logits fp32 [R, V'] of which the first `vocabulary` columns count (the rest is padding); targets int32 [R].
/// Each row is summed in a fixed order in fp32 lanes folded in double, or wider. A target outside the vocabulary is an
/// error; on a GPU, where the host does not look at them, its logp is NaN.
void logprob_forward(const TokenStatistics& statistics, const Tensor& logits, const Tensor& targets, int64_t vocabulary,
                     Stream& stream);

/// Derivatives of the objective with respect to the statistics, fp32 [R]; empty = 0.
struct TokenCotangents {
  Tensor logp;
  Tensor lse;
  Tensor entropy;
};
/// dlogits [R, V'] (compute dtype; may overlay logits' memory when row r of dlogits lies inside row r of logits, that
/// is when dlogits is fp32 in place; a 16-bit result is a separate tensor) = logp' (onehot - p) + lse' p - entropy' p
/// (log p
/// + H). Padding columns get 0. Rows with ignore_target take no logp term. With a softcap the logits are capped ones,
/// and dlogits belongs to those before the cap.
void logprob_backward(const Tensor& dlogits, const Tensor& logits, const Tensor& targets,
                      const TokenStatistics& statistics, const TokenCotangents& cotangents, int64_t vocabulary,
                      float softcap, Stream& stream);

}  // namespace llmtrain
