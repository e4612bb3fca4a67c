#include "data/batch_config.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"

namespace llmtrain {

void BatchConfig::visit(DeckKeys& keys) {
  keys.section("batch", "Set how many tokens an optimizer step takes, whatever the number of ranks.", Change::breaks,
               model_tasks);
  keys.key("sequence_length", sequence_length,
           {.unit = "tokens",
            .range = between(1, 1 << 24),
            .doc = "Maximum length of a sample. Not required with run.task = evaluate, which takes the limit of "
                   "model.path, at most 4096, and generate, which takes what the longest prompt and "
                   "generate.max_new_tokens need within that limit.",
            .required = true});
  keys.key(
      "micro", micro,
      {.unit = "sequences",
       .range = between(1, 1 << 20),
       .doc = "Number of sequences in a forward pass; with run.task = generate that a rank continues side by side."});
  keys.key("global", global,
           {.unit = "sequences",
            .range = between(1, 1 << 30),
            .doc = "Number of sequences in an optimizer step; a multiple of micro.",
            .automatic = "micro",
            .tasks = sample_tasks});
  keys.key("gradient_accumulation_steps", gradient_accumulation_steps,
           {.unit = "micro-batches",
            .range = between(1, 1 << 20),
            .doc = "Number of micro-batches in an optimizer step. Give either this or global.",
            .automatic = "global / micro",
            .tasks = sample_tasks});
}

void BatchConfig::take_length(DeckLoader& deck, int64_t length, const std::string& source) {
  sequence_length = length;
  deck.set("batch.sequence_length", Origin::automatic, source);
}

void BatchConfig::resolve(DeckLoader& deck, int64_t max_tokens) {
  if (max_tokens > 0) {
    deck.check(!deck.given("batch.gradient_accumulation_steps"), {"batch.gradient_accumulation_steps"},
               "cannot be combined with data.max_tokens_per_batch: give batch.global, the number of samples in a step");
    deck.check(
        max_tokens >= sequence_length, {"data.max_tokens_per_batch", "batch.sequence_length"},
        fmt::format("{} is less than a sample can have (batch.sequence_length = {})", max_tokens, sequence_length));
    deck.unused("batch.micro", "data.max_tokens_per_batch limits micro-batches");
    micro = 1;
  }
  if (deck.given("batch.gradient_accumulation_steps")) {
    global = micro * gradient_accumulation_steps;
    deck.unused("batch.global", fmt::format("micro x gradient_accumulation_steps = {}", global));
  } else {
    if (!deck.given("batch.global")) {
      global = micro;
      deck.set("batch.global", Origin::automatic, "micro");
    }
    deck.check(global % micro == 0, {"batch.global", "batch.micro"},
               fmt::format("{} is not a multiple of micro = {}", global, micro));
    gradient_accumulation_steps = global / micro;
    deck.unused("batch.gradient_accumulation_steps", fmt::format("global / micro = {}", gradient_accumulation_steps));
  }
  deck.check(
      micro * sequence_length < int64_t{1} << 31, {"batch.micro", "batch.sequence_length"},
      fmt::format("{} sequences of {} tokens are more than 2^31 tokens in a forward pass", micro, sequence_length));
}

}  // namespace llmtrain
