#include "train/config/log_config.hpp"

#include "core/deck/deck.hpp"

namespace llmtrain {

void LogConfig::visit(DeckKeys& keys) {
  keys.section("log", "What is written while the run goes on, and how often.", Change::nothing);
  keys.key("every_steps", every_steps,
           {.unit = "steps", .range = at_least(0), .doc = "A line of progress; 0 = never."});
  keys.key("sinks", sinks, {.doc = "Where metrics go besides the console: metrics.h5, metrics.jsonl."});
  keys.key("samples_every_steps", samples_every_steps,
           {.unit = "steps", .range = at_least(0), .doc = "The model continues the prompts; 0 = never."});
  keys.key("sample_prompts", sample_prompts,
           {.doc = "Texts to continue, \\, for a comma inside one; none: a document from its beginning."});
  keys.key(
      "sample_length", sample_length,
      {.unit = "tokens", .range = between(1, 1 << 20), .doc = "New tokens of a sample, if it does not end before."});
  keys.key("sample_temperature", sample_temperature,
           {.range = at_least(0), .doc = "Logits are divided by it; 0 = always the most probable token."});
  keys.key("sample_top_k", sample_top_k,
           {.unit = "tokens", .range = at_least(0), .doc = "Only the k most probable tokens are drawn from; 0 = all."});
  keys.key("sample_top_p", sample_top_p,
           {.range = {.min = 0, .max = 1, .open_min = true},
            .doc = "Only the most probable tokens that reach this probability together; 1 = all."});
  keys.key("parameter_hash_every_steps", parameter_hash_every_steps,
           {.unit = "steps", .range = at_least(0), .doc = "The ledger gets a hash of all parameters; 0 = never."});
  keys.key(
      "profile", profile,
      {.unit = "steps",
       .range = between(0, 1000),
       .doc = "So many steps, after the first of a job where it has more, are taken apart: a table of where their time "
              "goes, and trace.json in the run's folder for a trace viewer; fewer where a rank has 65,536 spans "
              "before. 0 = off."});
}

void LogConfig::resolve(DeckLoader& deck) const {
  if (samples_every_steps > 0) return;
  for (const char* key :
       {"log.sample_prompts", "log.sample_length", "log.sample_temperature", "log.sample_top_k", "log.sample_top_p"}) {
    deck.unused(key, "no effect with samples_every_steps = 0");
  }
}

}  // namespace llmtrain
