#include "rollout/rollout_config.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"

namespace llmtrain {

void RolloutConfig::visit(DeckKeys& keys) {
  keys.section("rollout",
               "Sample completions of the prompts, to learn from their rewards (run.task = ppo, grpo), or from a "
               "teacher (distill, with distill.on_policy).",
               Change::breaks, reinforcement_tasks | TaskSet{Task::distill}, true);
  keys.key("max_new_tokens", max_new_tokens,
           {.unit = "tokens",
            .range = at_least(1),
            .doc = "Maximum length of a completion, with its stop token. A prompt may have the remaining tokens of "
                   "batch.sequence_length."});
  keys.key<Fp32Number>("temperature", temperature,
                       {.range = above(0),
                        .doc = "Divisor of the logits. Log-probabilities of the loss are those of the distribution "
                               "sampled from: temperature, top_k and top_p apply to both."});
  keys.key("top_k", top_k,
           {.unit = "tokens", .range = at_least(0), .doc = "Sample among the k most probable tokens; 0 = off."});
  keys.key("top_p", top_p,
           {.range = {.min = 0, .max = 1, .open_min = true},
            .doc = "Sample among the smallest set of the most probable tokens whose probability reaches p; 1 = off."});
  visit_cache(keys, cache);
  keys.key("stop", stop,
           {.doc = "Texts that end a completion, in addition to EOS and the stop tokens of the chat template."});
}

void RolloutConfig::resolve(DeckLoader& deck, int64_t sequence_length) const {
  deck.check(max_new_tokens < sequence_length, {"rollout.max_new_tokens", "batch.sequence_length"},
             fmt::format("{} tokens leave no room for a prompt in batch.sequence_length = {}: choose a longer sequence "
                         "or shorter completions",
                         max_new_tokens, sequence_length));
  check_cache(deck, cache, "rollout");
}

}  // namespace llmtrain
