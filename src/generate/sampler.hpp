#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "models/model.hpp"

namespace llmtrain {

struct SamplingOptions {
  double temperature = 1;         ///< 0 = greedy: the highest logit, the lowest id among equals
  int64_t top_k = 0;              ///< keep the k most probable; 0 = off
  double top_p = 1;               ///< then the smallest set of the most probable whose mass reaches p; 1 = off
  double min_p = 0;               ///< then those at least this fraction as probable as the most probable one; 0 = off
  double repetition_penalty = 1;  ///< of tokens that have occurred (Keskar et al. 2019), before all else; 1 = off
};

/// Logits above 0 of the tokens that have occurred are divided by the penalty, those below multiplied, each once.
void penalize_repetition(std::span<float> logits, std::span<const int32_t> occurred, double penalty);

/// One token from `logits`, a pure function of them and of the 32 uniform `bits`: inverse transform over the kept
/// tokens in the order of falling probability, lower id first among equals. Sums in double.
int32_t sample_token(std::span<const float> logits, const SamplingOptions& options, uint32_t bits);

struct GenerationOptions {
  SamplingOptions sampling;
  int64_t new_tokens = 256;
  int64_t context = 0;  ///< longest input of the model; older tokens fall out of the window
  int32_t eos = -1;     ///< ends the text; -1 = never
  int64_t vocabulary = 0;
  uint64_t key = 0;  ///< random_key(seed, sampling, step, index)
  /// Asked before each token, by all ranks alike: whether to leave off. May be null.
  std::function<bool()> interrupted = nullptr;
};

class BatchBuffers;
/// Continues `prompt` (at least one token). Every rank calls it alike and computes the same; the whole window is run
/// anew for each token. Returns the new tokens, without EOS. UserError(diverged) for logits that are not finite.
std::vector<int32_t> generate_tokens(Model& model, Context& ctx, BatchBuffers& buffers, const Tensor& logits,
                                     std::span<const int32_t> prompt, const GenerationOptions& options);

}  // namespace llmtrain
