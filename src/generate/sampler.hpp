#pragma once
// Samples one token from the logits of a position.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace llmtrain {

/// Filters of the distribution, as in Transformers' logits processors, in their order.
struct SamplingOptions {
  double temperature = 1;  ///< 0 = greedy: the highest logit, the lowest id among equals
  int64_t top_k = 0;       ///< keeps the k most probable and those equal to the last of them; 0 = off
  /// Keeps the smallest set of the most probable whose mass reaches p, of equals the lower ids; 1 = off.
  double top_p = 1;
  double min_p = 0;  ///< keeps those at least this fraction as probable as the most probable one; 0 = off
  /// Penalty on tokens that have occurred (Keskar et al. 2019), applied before the other filters; 1 = off.
  double repetition_penalty = 1;
  int64_t no_repeat_ngram = 0;  ///< excludes tokens that would complete a sequence of n tokens again; 0 = off
};

/// Divides logits above 0 of tokens that have occurred by the penalty and multiplies those below 0, each once.
void penalize_repetition(std::span<float> logits, std::span<const int32_t> occurred, double penalty);

/// Sets logits of tokens that would end a second occurrence of n tokens in `text` to -infinity. Throws
/// UserError(bad_content) if that excludes every token.
void exclude_repeated_ngrams(std::span<float> logits, std::span<const int32_t> text, int64_t n);

/// Computes weights proportional to the tokens' probabilities, 0 for excluded tokens, 1 for the most probable;
/// temperature > 0, and the repetition penalty was applied. Throws UserError(diverged) for logits that are not finite.
std::vector<double> token_weights(std::span<const float> logits, const SamplingOptions& options);

/// Index of the highest logit, the lowest among equals. Throws UserError(diverged) for logits that are not finite; a
/// token that is excluded may have -infinity.
size_t highest(std::span<const float> logits);

/// Log-probability of a token under the softmax of `logits`, nats.
float log_probability(std::span<const float> logits, int32_t token);

/// Returns one token from `logits`, a pure function of them and of the 32 uniform `bits`: inverse transform sampling
/// over the remaining tokens, in the order of their ids. Throws UserError(diverged) for logits that are not finite.
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint32_t bits);

}  // namespace llmtrain
