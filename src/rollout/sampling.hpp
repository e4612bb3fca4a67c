#pragma once
// Completions that the policy samples between steps. They do not depend on ranks, threads or the ZeRO stage.

#include <cstdint>
#include <string>
#include <vector>

#include "generate/generator.hpp"
#include "rollout/batches.hpp"
#include "rollout/rollout_config.hpp"
#include "rollout/scoring.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

/// Room for the sequences of an iteration, at most max_rows of them side by side on one of `ranks` ranks.
GeneratorCapacity sampling_capacity(ModelSet& models, const RolloutShape& shape, const RolloutConfig& sampling,
                                    int ranks, int64_t max_rows);
/// A request without prompts, for an iteration.
GenerationRequest sampling_request(const SamplingContext& run, const RolloutConfig& sampling, uint64_t seed,
                                   int64_t iteration);

/// Texts that end a completion, beside tokens.
struct StopTexts {
  const std::vector<std::string>& texts;
  const Tokenizer* tokenizer;
};
/// Sets `sequences` on every rank, one for each prompt, unless it was interrupted, or logits are not finite.
/// Collective.
Prepared sample_sequences(const SamplingContext& run, Generator& generator, GenerationRequest wanted,
                          const StopTexts& stop, std::vector<RolloutSequence>& sequences);

}  // namespace llmtrain
