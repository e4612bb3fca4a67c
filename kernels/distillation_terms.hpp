#pragma once
// The arithmetic of a token in divergences between distributions, the same on every device.

#include <cmath>

#include "core/host_device.hpp"
#include "kernels/distillation.hpp"
#include "kernels/logprob_checks.hpp"

namespace llmtrain {

/// Value of a token in a divergence, and its slope: the derivative with respect to the student's log q, but for a
/// multiple of q, which the softmax takes out.
template <class V>
struct DivergenceTerm {
  V value, slope;
};

/// V is a float or a vector of them; Exp is their exponential.
template <class V, class Exp>
struct DivergenceTerms {
  Divergence divergence;
  float beta, log_beta, log_rest;
  Exp exponential;

  DivergenceTerms(const DistillationTerms& terms, const Exp& exp)
      : divergence(terms.divergence),
        beta(terms.beta),
        log_beta(std::log(terms.beta)),
        log_rest(std::log1p(-terms.beta)),
        exponential(exp) {
    if (divergence == Divergence::jsd && beta == 0) divergence = Divergence::forward_kl;
    if (divergence == Divergence::jsd && beta == 1) divergence = Divergence::reverse_kl;
  }

  LLMTRAIN_HOST_DEVICE DivergenceTerm<V> operator()(V log_p, V log_q) const {
    if (divergence == Divergence::forward_kl) {
      const V p = exponential(log_p);
      return {p * (log_p - log_q), -p};
    }
    const V q = exponential(log_q);
    if (divergence == Divergence::reverse_kl) {
      const V value = q * (log_q - log_p);
      return {value, value};
    }
    const V log_m = log_of_sum(log_p + log_beta, log_q + log_rest);
    const V of_student = (1.0f - beta) * q * (log_q - log_m);
    return {beta * exponential(log_p) * (log_p - log_m) + of_student, of_student};
  }

 private:
  /// log(e^a + e^b)
  LLMTRAIN_HOST_DEVICE V log_of_sum(V a, V b) const {
    const V high = a > b ? a : b, low = a > b ? b : a;
    const V e = exponential(low - high);
    // log(1 + e) = 2 artanh(s); s is at most 1/3, so that the next term is below 1e-8 of the sum
    const V s = e / (2.0f + e), square = s * s;
    V series = square * (1.0f / 13) + 1.0f / 11;
    series = series * square + 1.0f / 9;
    series = series * square + 1.0f / 7;
    series = series * square + 1.0f / 5;
    series = series * square + 1.0f / 3;
    return high + 2.0f * (s + s * square * series);
  }
};

/// Pointers of a block of rows.
struct DistillationRows {
  float* logits;
  const int32_t* targets;
  const float *logp, *lse, *weight;  ///< the weight is negative
  float *distilled, *divergence, *left_out, *agreement;
  const int32_t* best;  ///< null: all tokens
  const float *teacher, *rest;
  int64_t stride, teacher_stride, common, vocabulary, k;
  float inverse_temperature, inverse_cap, cross_entropy;
  bool tail;

  DistillationRows(const Tensor& dlogits, const Tensor& row_logits, const Tensor& row_targets, const TokenStatistics& s,
                   const TokenCotangents& cotangents, const TeacherRows& rows, int64_t common_tokens,
                   int64_t all_tokens, const DistillationTerms& terms, float softcap)
      : logits(row_logits.as<float>()),
        targets(row_targets.as<int32_t>()),
        logp(data_or_null<float>(s.logp)),
        lse(data_or_null<float>(s.lse)),
        weight(data_or_null<float>(cotangents.logp)),
        distilled(data_or_null<float>(s.distilled)),
        divergence(data_or_null<float>(s.divergence)),
        left_out(data_or_null<float>(s.left_out)),
        agreement(data_or_null<float>(s.agreement)),
        best(data_or_null<int32_t>(rows.tokens)),
        teacher(rows.logp.as<float>()),
        rest(data_or_null<float>(rows.rest)),
        stride(row_logits.dim(1)),
        teacher_stride(rows.logp.dim(1)),
        common(common_tokens),
        vocabulary(all_tokens),
        k(rows.tokens.empty() ? 0 : rows.tokens.dim(1)),
        inverse_temperature(1 / terms.temperature),
        inverse_cap(softcap > 0 ? 1 / softcap : 0),
        cross_entropy(terms.cross_entropy),
        tail(terms.tail) {
    const int64_t r = row_logits.dim(0);
    check_logits(row_logits, row_targets, s, all_tokens);
    check_logits_gradient(dlogits, row_logits, s, cotangents);
    for (const Tensor* t : {&s.distilled, &s.divergence, &s.left_out, &s.agreement, &rows.rest}) {
      check_per_row(*t, r, DType::f32);
    }
    LLMTRAIN_CHECK(logp != nullptr && weight != nullptr, "distillation needs the targets' logp, and weights of rows");
    LLMTRAIN_CHECK(common > 0 && common <= vocabulary && terms.temperature > 0,
                   "common tokens, and a positive temperature");
    LLMTRAIN_CHECK(rows.logp.rank == 2 && rows.logp.dim(0) == r && rows.logp.dtype == DType::f32,
                   "a row of log-probabilities for each row of logits");
    LLMTRAIN_CHECK(k > 0 ? k == teacher_stride && k <= common && rest != nullptr : teacher_stride >= common,
                   "log-probabilities of the teacher's tokens");
  }
  LLMTRAIN_HOST_DEVICE bool counts(int64_t r) const { return targets[r] != ignore_target && weight[r] != 0; }
  /// Slope of the cap at a capped logit.
  LLMTRAIN_HOST_DEVICE float slope(float x) const { return 1 - (x * inverse_cap) * (x * inverse_cap); }
  LLMTRAIN_HOST_DEVICE void write(int64_t r, double value, double outside, bool agrees) const {
    const auto loss = static_cast<float>(value);
    if (distilled != nullptr) distilled[r] = cross_entropy == 0 ? loss : loss - cross_entropy * logp[r];
    if (divergence != nullptr) divergence[r] = loss;
    if (left_out != nullptr) left_out[r] = static_cast<float>(outside);
    if (agreement != nullptr) agreement[r] = agrees ? 1.0f : 0.0f;
  }
};

inline void check_top_tokens(const TeacherRows& out, const Tensor& logp, int64_t common) {
  LLMTRAIN_CHECK(logp.rank == 2 && logp.dtype == DType::f32 && common > 0 && common <= logp.dim(1),
                 "log-probabilities are fp32 [R, V']");
  LLMTRAIN_CHECK(out.tokens.rank == 2 && out.tokens.dtype == DType::i32 && out.tokens.dim(0) == logp.dim(0) &&
                     out.tokens.dim(1) > 0 && out.tokens.dim(1) <= common && out.logp.dtype == DType::f32 &&
                     out.logp.numel() == out.tokens.numel() && out.rest.dtype == DType::f32 &&
                     out.rest.numel() == logp.dim(0),
                 "the top tokens are int32 and fp32 [R, k], the rest fp32 [R]");
}

}  // namespace llmtrain
