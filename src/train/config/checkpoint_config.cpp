#include "train/config/checkpoint_config.hpp"

#include "core/deck/deck.hpp"
#include "hf/config_json.hpp"
#include "train/config/config.hpp"

namespace llmtrain {

void CheckpointConfig::visit(DeckKeys& keys) {
  keys.section("checkpoint", "Save the run, so that the same command resumes it where it stopped.", Change::nothing);
  keys.key("every_steps", every_steps, {.unit = "steps", .range = at_least(0), .doc = "A checkpoint; 0 = never."});
  keys.key("every_minutes", every_minutes,
           {.unit = "minutes", .range = at_least(0), .doc = "A checkpoint after so much time without one; 0 = never."});
  keys.key("at_end", at_end, {.doc = "A checkpoint when the run has come to its end."});
  keys.key("keep", keep,
           {.range = at_least(1),
            .doc = "The newest so many stay, never fewer than two, besides the best and the one resumed from."});
  keys.key("resume", resume,
           {.doc = "auto: go on from the run's newest checkpoint that is whole; required: and fail if there is none; "
                   "never: refuse a run that has begun; a checkpoint's path: a new run begins with its state."});
  keys.key("asynchronous", asynchronous, {.doc = "Written by a thread of its own while the training goes on."});
  keys.key("buffer", buffer,
           {.unit = "bytes",
            .range = between(1 << 20, 1e15),
            .doc = "Memory of a rank for the copy that is being written; what does not fit holds the next update back "
                   "until it is read. A run that saves on request only has no copy."});
  keys.key("verify", verify, {.doc = "Read back from the disk and compared; false: from the cache in memory only."});
  keys.key(
      "signal_save", signal_save,
      {.doc = "SIGTERM, SIGINT, SIGUSR1, SIGUSR2 end the run with a checkpoint and exit code 75; false: at once."});
  keys.key(
      "files", files,
      {.doc = "How many files the state is in: one per rank, or one per node, for file systems that mind many. Any "
              "number of ranks goes on from either."});
  keys.key("best_metric", best_metric,
           {.doc = "What makes an evaluation the best: the lowest loss, or the highest share of tokens that the model "
                   "finds most probable. Early stopping goes by it, too."});
  keys.key(
      "export", export_model,
      {.doc = "A Hugging Face folder in <run>/export, written once at the end: of the last weights, or of the best "
              "by best_metric. With best every better evaluation is followed by a checkpoint."});
  keys.key("export_dtype", export_dtype, {.doc = "Of the exported weights; what is trained is always fp32."});
  keys.key("export_file_size", export_file_size,
           {.unit = "bytes",
            .range = between(1 << 20, int64_t{1} << 50),
            .doc = "Weights of an export beyond this go into a further file."});
}

namespace {

/// `what` of `key` needs a best evaluation.
void check_best(DeckLoader& deck, const Config& config, std::string_view key, const std::string& what) {
  const EvaluationConfig& e = config.evaluation;
  deck.check(e.every_steps > 0 || e.at_end, {key, "evaluation.every_steps", "evaluation.at_end"},
             what + " needs evaluations: evaluation.every_steps above 0, or at_end = true");
  deck.check(!config.data.validation.empty() || config.data.validation_fraction > 0,
             {key, "data.validation", "data.validation_fraction"},
             what + " needs validation data: data.validation, or data.validation_fraction above 0");
}

}  // namespace

void CheckpointConfig::resolve(DeckLoader& deck, const Config& config) {
  if (config.parallel.offload_optimizer == Offload::nvme && !deck.given("checkpoint.buffer")) {
    buffer = 1 << 20;  // what is on a disk to spare memory is not to be copied to memory
    deck.set("checkpoint.buffer", Origin::automatic, "parallel.offload_optimizer = nvme: no copy in memory");
  }
  if (config.evaluation.load_best_at_end) check_best(deck, config, "evaluation.load_best_at_end", "the best");
  if (export_model == Export::none) {
    deck.unused("checkpoint.export_dtype", "no effect with export = none");
    deck.unused("checkpoint.export_file_size", "no effect with export = none");
    return;
  }
  if (export_model == Export::best) check_best(deck, config, "checkpoint.export", "best");
  if (!config.model.path.empty() || !deck.sound({"model.d_model", "model.n_layers", "model.n_heads"})) return;
  ModelConfig model = config.model;
  if (model.vocab_size == 0) model.vocab_size = 1;
  const std::string obstacle = hf_config_obstacle(model);
  deck.check(obstacle.empty(), {"checkpoint.export"}, obstacle + ": it could not be read anywhere else");
}

}  // namespace llmtrain
