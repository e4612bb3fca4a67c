#include "metrics/log_config.hpp"

#include <algorithm>

namespace llmtrain {

void LogConfig::visit(DeckKeys& keys) {
  keys.section("log", "Choose what a run writes, and how often.", Change::nothing, training_tasks);
  keys.key("every_steps", every_steps,
           {.unit = "steps", .range = at_least(0), .doc = "Interval of progress lines; 0 = never."});
  keys.key("every_first", every_first, {.doc = "The first step also gets a progress line."});
  keys.key("sinks", sinks,
           {.doc = "Files for metrics, besides the console. hdf5: metrics.h5. jsonl: metrics.jsonl. tensorboard: event "
                   "files in tensorboard/. wandb: an offline run in wandb/, for `wandb sync`. html: a page in report/.",
            .tasks = sample_tasks});
  keys.key("samples_every_steps", samples_every_steps,
           {.unit = "steps",
            .range = at_least(0),
            .doc = "Interval of samples, in which the model continues the prompts; 0 = never."});
  keys.key(
      "sample_prompts", sample_prompts,
      {.doc =
           "Texts to continue (\\, is a comma inside a text); an empty list: one sample that starts like a document."});
  keys.key("sample_length", sample_length,
           {.unit = "tokens", .range = between(1, 1 << 20), .doc = "Maximum number of new tokens of a sample."});
  keys.key("sample_temperature", sample_temperature,
           {.range = at_least(0), .doc = "Divisor of the logits; 0 = always the most probable token."});
  keys.key("sample_top_k", sample_top_k,
           {.unit = "tokens", .range = at_least(0), .doc = "Sample only from the k most probable tokens; 0 = all."});
  keys.key("sample_top_p", sample_top_p,
           {.range = {.min = 0, .max = 1, .open_min = true},
            .doc = "Sample only from the most probable tokens whose probabilities sum to this value; 1 = all."});
  keys.key(
      "parameter_hash_every_steps", parameter_hash_every_steps,
      {.unit = "steps", .range = at_least(0), .doc = "Interval of hashes of all parameters in the ledger; 0 = never."});
  keys.key(
      "system", system,
      {.doc = "Log how busy each node is (processors, memory, disk, network, GPUs; sampled once a second), and what a "
              "step moves between and inside nodes."});
  keys.key("slow_after", slow_after,
           {.doc = "Time for which a rank's own work takes 1.3 times as long as the median rank's before its node is "
                   "reported as slow; 0s = never."});
  keys.key(
      "profile", profile,
      {.unit = "steps",
       .range = between(0, 1000),
       .doc =
           "Profile this many steps (the first one is skipped): the log gets a table of their time, and the run's "
           "folder gets trace.json for a trace viewer. A step of generate is a token of every running text. Recording "
           "ends early if a rank has 65,536 spans. 0 = off.",
       .tasks = training_tasks | tasks_with(TaskSamples::generation)});
}

void LogConfig::resolve(DeckLoader& deck) const {
  const auto has = [&](Sink sink) { return std::ranges::find(sinks, sink) != sinks.end(); };
  deck.check(!has(Sink::html) || has(Sink::jsonl), {"log.sinks"}, "html shows what jsonl writes: add jsonl");
  for (const char* key : {"wandb.project", "wandb.name", "wandb.entity", "wandb.tags", "wandb.group"}) {
    if (!has(Sink::wandb)) deck.unused(key, "no effect without wandb in log.sinks");
  }
  if (samples_every_steps > 0) return;
  for (const char* key :
       {"log.sample_prompts", "log.sample_length", "log.sample_temperature", "log.sample_top_k", "log.sample_top_p"}) {
    deck.unused(key, "no effect with samples_every_steps = 0");
  }
}

}  // namespace llmtrain
