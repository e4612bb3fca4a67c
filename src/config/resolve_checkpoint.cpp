#include "config/resolve_checkpoint.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"
#include "hf/config/config_json.hpp"

namespace llmtrain {

void check_best_is_measured(DeckLoader& deck, const Config& config, std::string_view key) {
  constexpr std::string_view validation = "validation/";
  const bool has_data = !config.data.validation.empty() || config.data.validation_fraction > 0;
  const bool of_task = config.checkpoint.best_metric.find('/', validation.size()) != std::string::npos;
  deck.check(has_data || config.evaluation.tasks.empty() || of_task, {key, "checkpoint.best_metric"},
             fmt::format("without validation data there is no {}: let checkpoint.best_metric name a score of "
                         "evaluation.tasks, such as validation/NAME/acc",
                         config.checkpoint.best_metric));
}

namespace {

/// Reports that the option of `key` needs a best evaluation.
void check_best(DeckLoader& deck, const Config& config, std::string_view key, const std::string& what) {
  const EvaluationConfig& e = config.evaluation;
  deck.check(e.every_steps > 0 || e.at_end, {key, "evaluation.every_steps", "evaluation.at_end"},
             what + " needs evaluations: set evaluation.every_steps above 0, or at_end = true");
  deck.check(!config.data.validation.empty() || config.data.validation_fraction > 0 || !e.tasks.empty(),
             {key, "data.validation", "data.validation_fraction"},
             what + " needs validation data: give data.validation, or data.validation_fraction above 0");
  check_best_is_measured(deck, config, key);
}

}  // namespace

void resolve_checkpoint(DeckLoader& deck, Config& config) {
  using Export = CheckpointConfig::Export;
  CheckpointConfig& own = config.checkpoint;
  const bool epochs = own.every_epochs > 0;
  if (epochs) own.every_steps = 1;  // until the data are known
  deck.unused(epochs ? "checkpoint.every_steps" : "checkpoint.every_epochs",
              epochs ? "every_epochs is given" : "every_steps applies");
  if (config.parallel.offload_optimizer == Offload::nvme && !deck.given("checkpoint.buffer")) {
    own.buffer = 1 << 20;  // state on a disk must not be copied to memory
    deck.set("checkpoint.buffer", Origin::automatic, "parallel.offload_optimizer = nvme: no copy in memory");
  }
  if (config.evaluation.load_best_at_end) check_best(deck, config, "evaluation.load_best_at_end", "the best");
  const bool adapters = config.run.finetuning == RunConfig::Finetuning::lora;
  if (own.export_model == Export::best) check_best(deck, config, "checkpoint.export", "best");
  if (!adapters) deck.unused("checkpoint.export_merged", "no effect without run.finetuning = lora");
  const std::string why = adapters ? "no effect with run.finetuning = lora" : "no effect with export = none";
  if (adapters || own.export_model == Export::none) deck.unused("checkpoint.export_dtype", why);
  if (!own.writes_model(adapters)) deck.unused("checkpoint.export_file_size", why);
  if (adapters && own.export_merged) {
    deck.check(!config.model.path.empty(), {"checkpoint.export_merged", "model.path"}, "needs a folder in model.path");
  }
  if (adapters && own.export_model != Export::none && !own.export_merged) {
    deck.note("checkpoint.export", "the run writes its adapters; checkpoint.export_merged = true writes the model too");
  }
  if (adapters || own.export_model == Export::none) return;
  if (!config.model.path.empty() || !deck.sound({"model.path", "model.d_model", "model.n_layers", "model.n_heads"})) {
    return;
  }
  ModelConfig model = config.model;
  if (model.vocab_size == 0) model.vocab_size = 1;
  const std::string obstacle = hf_config_obstacle(model);
  deck.check(obstacle.empty(), {"checkpoint.export"}, obstacle + ": other programs could not read the export");
}

}  // namespace llmtrain
