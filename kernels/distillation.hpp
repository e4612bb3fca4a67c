#pragma once
// Losses between whole distributions of a student and a teacher, and their gradients, for a block of rows while its
// logits exist. Generalised Jensen-Shannon divergence: Agarwal et al. 2024, arXiv:2306.13649.

#include <cstdint>

#include "core/tensor.hpp"
#include "device/device.hpp"
#include "kernels/logprob.hpp"

namespace llmtrain {

/// With p the teacher's and q the student's distribution, of the first tokens of the vocabulary, at a temperature:
/// forward_kl: sum of p (log p - log q); reverse_kl: of q (log q - log p); jsd, with m = beta p + (1 - beta) q: beta
/// times the sum of p (log p - log m) and 1 - beta times that of q (log q - log m). As in TRL, beta = 0 is forward_kl
/// and beta = 1 is reverse_kl.
enum class Divergence : uint8_t { forward_kl, reverse_kl, jsd };

struct DistillationTerms {
  Divergence divergence = Divergence::forward_kl;
  float beta = 0.5f;
  float temperature = 1;    ///< of the student's logits; the teacher's log-probabilities have it already
  bool tail = false;        ///< all but the teacher's top tokens are one more token; false: these are renormalised
  float cross_entropy = 0;  ///< factor of -log q(target) at temperature 1, over the whole vocabulary
};

/// Log-probabilities of a teacher, nats: of all tokens, or of the top k.
struct TeacherRows {
  Tensor tokens;  ///< int32 [R, k], most probable first, lower numbers first among equals; empty: all tokens
  Tensor logp;    ///< fp32 [R, k], or of all tokens [R, W'], of which the first columns count
  Tensor rest;    ///< fp32 [R]: that of all other tokens together; no_mass if there is none; empty without `tokens`
  /// Rows [first, first + count) of all.
  TeacherRows rows(int64_t first, int64_t count) const {
    const auto cut = [&](const Tensor& t) { return t.empty() ? t : t.rows(first, count); };
    return {cut(tokens), cut(logp), cut(rest)};
  }
};

/// Logarithm of a probability of 0; finite, so that 0 times it is 0.
inline constexpr float no_mass = -1e30f;

/// Turns the first `common` columns of logits fp32 [R, V'] into log-probabilities at a temperature, in place.
void log_probabilities(const Tensor& logits, int64_t common, float temperature, Stream& stream);

/// Finds the top k of the first `common` columns of log-probabilities fp32 [R, V'], of which contents are lost. The
/// shape of out.tokens says k, at most `common`.
void top_tokens(const TeacherRows& out, const Tensor& logp, int64_t common, Stream& stream);

/// Writes for each row the divergence of the first `common` columns of the logits fp32 [R, V'] from the teacher, and
/// dlogits [R, V'] (compute dtype) = weight (divergence' + cross_entropy (softmax - onehot)), where the weight of a row
/// is minus cotangents.logp. Statistics: lse and logp are inputs, those of the vocabulary at temperature 1; distilled,
/// divergence, left_out and agreement are outputs where they are not empty. Rows without a target or weight get zeros.
/// Contents of the logits are lost; fp32 dlogits may alias them. `softcap` as in logprob_backward.
void distillation_backward(const Tensor& dlogits, const Tensor& logits, const Tensor& targets,
                           const TokenStatistics& statistics, const TokenCotangents& cotangents,
                           const TeacherRows& teacher, int64_t common, int64_t vocabulary,
                           const DistillationTerms& terms, float softcap, Stream& stream);

}  // namespace llmtrain
