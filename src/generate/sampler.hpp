#pragma once
// One token from the logits of a position.

#include <cstdint>
#include <span>
#include <vector>

namespace llmtrain {

/// What tokens may be drawn, as in Transformers' logits processors, in their order.
struct SamplingOptions {
  double temperature = 1;  ///< 0 = greedy: the highest logit, the lowest id among equals
  int64_t top_k = 0;       ///< keep the k most probable and the equals of the last of them; 0 = off
  double top_p = 1;        ///< then the smallest set of the most probable whose mass reaches p, of equals the lower
                           ///< ids; 1 = off
  double min_p = 0;        ///< then those at least this fraction as probable as the most probable one; 0 = off
  double repetition_penalty = 1;  ///< of tokens that have occurred (Keskar et al. 2019), before all else; 1 = off
};

/// Logits above 0 of the tokens that have occurred are divided by the penalty, those below multiplied, each once.
void penalize_repetition(std::span<float> logits, std::span<const int32_t> occurred, double penalty);

/// Weights in proportion to the tokens' probabilities, 0 for those that are left out, 1 for the most probable;
/// temperature > 0, repetition is penalized already. UserError(diverged) for logits that are not finite.
std::vector<double> token_weights(std::span<const float> logits, const SamplingOptions& options);

/// One token from `logits`, a pure function of them and of the 32 uniform `bits`: inverse transform over the tokens
/// that are left, in the order of their ids. UserError(diverged) for logits that are not finite.
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint32_t bits);

}  // namespace llmtrain
