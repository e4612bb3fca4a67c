#pragma once
// Conversion of logits to token statistics and back, for a block of rows. The full logits of a batch never exist.

#include "core/batch.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// Per-row outputs, fp32 [R] (argmax int32 [R]); empty ones are not computed. Rows with ignore_target get logp = 0.
struct TokenStatistics {
  Tensor logp;             ///< log softmax at the target; of a head that scores its outputs, [R, K] where K > 1
  Tensor lse;              ///< log sum exp of the logits
  Tensor entropy;          ///< entropy of the softmax, nats
  Tensor argmax;           ///< lowest index among equals
  Tensor value = {};       ///< fp32 [N], of a critic
  Tensor uniform = {};     ///< mean over the vocabulary of -log p, nats: cross-entropy of the uniform distribution
  Tensor mean_logit = {};  ///< fp32 [N], mean over the vocabulary (mean_logits)
  // Statistics of rows that learn from a teacher, fp32 [N] (distillation.hpp):
  Tensor distilled = {};   ///< loss: divergence, and the share of the cross-entropy, nats
  Tensor divergence = {};  ///< of the student from the teacher, nats
  Tensor left_out = {};    ///< probability of the tokens that are not among the teacher's top k
  Tensor agreement = {};   ///< 1 where both have the same best word, else 0

  /// Calls f(tensor) for all.
  template <class F>
  void each(const F& f) {
    for (Tensor* t : {&logp, &lse, &entropy, &argmax, &value, &uniform, &mean_logit, &distilled, &divergence, &left_out,
                      &agreement}) {
      f(*t);
    }
  }
  /// Rows [first, first + count) of all.
  TokenStatistics rows(int64_t first, int64_t count) const {
    TokenStatistics part = *this;
    part.each([&](Tensor& t) {
      if (!t.empty()) t = t.rows(first, count);
    });
    return part;
  }
};

/// Tokens whose logits are the first columns of a matrix: all of the vocabulary, or those of a block of it.
struct TokenRange {
  int64_t first = 0, count = 0, vocabulary = 0;

  TokenRange(int64_t all) : count(all), vocabulary(all) {}  // NOLINT(google-explicit-constructor): no block
  TokenRange(int64_t first_token, int64_t tokens, int64_t all) : first(first_token), count(tokens), vocabulary(all) {}
};

/// Mean of each row's first `vocabulary` logits; logits fp32 [R, V'], out fp32 [R]. In fp64, in an order that depends
/// on the vocabulary alone.
void mean_logits(const Tensor& out, const Tensor& logits, int64_t vocabulary, Stream& stream);

/// x = cap tanh(x / cap) in place, fp32 (Gemma 2).
void softcap_logits(const Tensor& logits, float cap, Stream& stream);

/// Divides logits fp32 [R, V'], of which the first columns are those of `tokens`, by the temperature of sampling, and
/// sets those of tokens that sampling could not draw to minus infinity. kept: uint32 [R, ceil(V / 32)], bit t % 32 of
/// word t / 32 says that token t could be drawn; empty: all could. Statistics of the result are those of the
/// distribution that was sampled from: excluded tokens have probability 0.
void temper_logits(const Tensor& logits, float temperature, const Tensor& kept, const TokenRange& tokens,
                   Stream& stream);
/// Turns the gradient with respect to tempered logits, in the compute dtype, into the one before: divided by the
/// temperature, 0 for excluded tokens.
void temper_gradient(const Tensor& dlogits, float temperature, const Tensor& kept, const TokenRange& tokens,
                     Stream& stream);

/// logits fp32 [R, V'], of which the first `vocabulary` columns count (the rest is padding); targets int32 [R]. Each
/// row is summed in a fixed order in fp32 lanes folded in double, or wider. A target outside the vocabulary is an error
/// on the host; on a GPU, where the host does not see the targets, its logp is NaN.
void logprob_forward(const TokenStatistics& statistics, const Tensor& logits, const Tensor& targets, int64_t vocabulary,
                     Stream& stream);

/// Share of a block of the vocabulary in the statistics of a row; a block without tokens has zeros, and -FLT_MAX.
struct LogprobPart {
  double weight;    ///< sum of e = exp(x - reference) over its logits x
  double moment;    ///< of e (x - reference)
  double total;     ///< of x
  float reference;  ///< its highest logit, or one near it
  float maximum;    ///< its highest logit
  float target;     ///< logit of the row's target, 0 if the block does not have it
  int32_t argmax;   ///< token, the lowest one among equals
};
/// parts: u8 [R sizeof(LogprobPart)], of logits fp32 [R, V'], whose first columns are those of `tokens`.
void logprob_parts(const Tensor& parts, const Tensor& logits, const Tensor& targets, const TokenRange& tokens,
                   Stream& stream);
/// Statistics, mean_logit too, from the parts of all blocks: u8 [S, R sizeof(LogprobPart)], in the order of the
/// vocabulary, in which they are added.
void add_logprob_parts(const TokenStatistics& statistics, const Tensor& parts, const Tensor& targets,
                       int64_t vocabulary, Stream& stream);

/// Derivatives of the objective with respect to the statistics, fp32 [R]; empty = 0.
struct TokenCotangents {
  Tensor logp;
  Tensor lse;
  Tensor entropy;
  Tensor value = {};  ///< fp32 [N], of a critic
  Tensor uniform = {};
  Tensor lse_squared = {};  ///< with respect to the square of lse

  /// Rows [first, first + count) of all.
  TokenCotangents rows(int64_t first, int64_t count) const {
    TokenCotangents part = *this;
    for (Tensor* t : {&part.logp, &part.lse, &part.entropy, &part.value, &part.uniform, &part.lse_squared}) {
      if (!t->empty()) *t = t->rows(first, count);
    }
    return part;
  }
};
/// dlogits [R, V'] (compute dtype) = logp' (onehot - p) + (lse' + 2 lse lse_squared') p - entropy' p (log p + H)
/// + uniform' (p - 1 / V). fp32 dlogits may alias
/// logits (row r of dlogits in row r of logits); a 16-bit result is a separate tensor. Padding columns get 0. Rows with
/// ignore_target have no logp term. With a softcap the logits are capped ones, and dlogits is the gradient before the
/// cap. (Of tempered logits the cap is softcap / temperature.) Statistics are those of the whole vocabulary.
void logprob_backward(const Tensor& dlogits, const Tensor& logits, const Tensor& targets,
                      const TokenStatistics& statistics, const TokenCotangents& cotangents, const TokenRange& tokens,
                      float softcap, Stream& stream);

/// Computes logprob_forward, then logprob_backward from these statistics, bit for bit. On a GPU one kernel does both
/// for a row, and the row, as far as it fits shared memory and the cache, is read from memory once.
void logprob_forward_backward(const Tensor& dlogits, const Tensor& logits, const Tensor& targets,
                              const TokenStatistics& statistics, const TokenCotangents& cotangents, int64_t vocabulary,
                              float softcap, Stream& stream);

}  // namespace llmtrain
