#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <utility>

#include "config/config.hpp"
#include "config/run_facts.hpp"
#include "core/deck/deck.hpp"
#include "core/deck/suggestion.hpp"
#include "data/dataset.hpp"
#include "hf/config/config_json.hpp"
#include "methods/method.hpp"
#include "models/freeze.hpp"
#include "models/lora.hpp"
#include "models/model_modules.hpp"
#include "models/models.hpp"
#include "train/config/load_config.hpp"
#include "train/config/mesh_checks.hpp"
#include "train/config/sequence_length.hpp"

namespace llmtrain {
namespace {

/// Reports that the option of `key` needs a best evaluation by a metric that no evaluation has: without validation data
/// only scores of evaluation.tasks are measured.
void check_best_is_measured(DeckLoader& deck, const Config& config, std::string_view key) {
  constexpr std::string_view validation = "validation/";
  const bool has_data = !config.data.validation.empty() || config.data.validation_fraction > 0;
  const bool of_task = config.checkpoint.best_metric.find('/', validation.size()) != std::string::npos;
  deck.check(has_data || config.evaluation.tasks.empty() || of_task, {key, "checkpoint.best_metric"},
             fmt::format("without validation data there is no {}: let checkpoint.best_metric name a score of "
                         "evaluation.tasks, such as validation/NAME/acc",
                         config.checkpoint.best_metric));
}

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

/// Checks what is kept and exported against the other sections, and sets what follows from them.
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

constexpr std::array<DeckLoader::ExclusiveKeys, 6> exclusive_keys = {{
    {"run.max_steps", "run.epochs"},
    {"batch.global", "batch.gradient_accumulation_steps"},
    {"evaluation.every_steps", "evaluation.every_epochs"},
    {"checkpoint.every_steps", "checkpoint.every_epochs"},
    {"schedule.warmup_steps", "schedule.warmup_ratio"},
    {"schedule.decay_steps", "schedule.decay_ratio"},
}};

/// A warm-up and decay that do not fit into the run are valid, since every schedule is defined for them. A trial may
/// then be shortened and a run resumed with fewer steps, and the resolved deck of either is a valid deck.
void note_lengths(DeckLoader& deck, const Config& config) {
  const int64_t steps = config.run.max_steps;
  if (steps == 0 || config.schedule.name == ScheduleConfig::Name::constant) return;
  const bool decays = config.schedule.name == ScheduleConfig::Name::warmup_stable_decay;
  const int64_t warmup = config.schedule.warmup_steps, decay = decays ? config.schedule.decay_steps : 0;
  if (warmup + decay <= steps || !deck.sound({"run.max_steps", "schedule.warmup_steps", "schedule.decay_steps"}))
    return;
  deck.note(warmup > 0 ? "schedule.warmup_steps" : "schedule.decay_steps",
            fmt::format("{}{} steps do not fit into run.max_steps = {}", warmup > 0 ? warmup : decay,
                        warmup > 0 && decay > 0 ? fmt::format(" and {} of decay", decay) : "", steps));
}

/// Keys of other tasks are valid, since one deck may serve several tasks; one note names those that the deck gives.
void mark_unused(DeckLoader& deck, const DeckKeys& keys, Task task) {
  std::vector<std::string> given;
  for (const DeckKeys::Key& key : keys.keys()) {
    if (key.tasks.contains(task)) continue;
    if (key.strict && deck.given(key.full_name())) {
      deck.fail(key.full_name(),
                fmt::format("run.task = {} does not use it; it is a key of {}", name_of(task), key.tasks.text()));
      continue;
    }
    if (deck.given(key.full_name())) given.push_back(key.full_name());
    deck.set(key.full_name(), Origin::unused, fmt::format("no effect with run.task = {}", name_of(task)));
  }
  if (!given.empty()) deck.note("run.task", fmt::format("{} does not use {}", name_of(task), joined(given)));
}

/// Keys of a section that describes another way of fine-tuning.
void mark_unused(DeckLoader& deck, const DeckKeys& keys, std::string_view section) {
  for (const std::string_view name : keys.names_in(section)) {
    deck.unused(fmt::format("{}.{}", section, name), fmt::format("no effect without run.finetuning = {}", section));
  }
}

constexpr const char* trained_in_full =
    "needs run.finetuning = lora: optimizer steps are smaller than the distance between two codes, so a matrix in 4 or "
    "8 "
    "bits would not change; train adapters";

/// LoftQ's adapters correct the errors of quantising the model of 16 bits.
void check_loftq(DeckLoader& deck, const Config& config) {
  if (!config.lora.starts_from_weights() || config.lora.moves_base()) return;
  deck.check(
      !config.source.quantization.active(), {"model.path", "lora.init"},
      "its matrices are quantised already, so that lora.init = loftq has no errors to correct: give the original "
      "model");
  deck.check(config.quantization.bits == 4, {"lora.init", "quantization.bits"},
             "loftq corrects the errors of 4 bits: set quantization.bits = 4");
  deck.check(!config.checkpoint.export_merged, {"checkpoint.export_merged"},
             "adapters that correct the errors of 4 bits belong to the quantised matrices: llmtool merge --base "
             "dequantized merges them into the folder that llmtool quantize writes");
}

/// `folders`: null for a recorded deck, which has the properties of its adapters.
void resolve_finetuning(DeckLoader& deck, const DeckKeys& keys, Config& config, const TaskRules& task,
                        ModelFolders* folders) {
  using Finetuning = RunConfig::Finetuning;
  const Finetuning kind = config.run.finetuning;
  const bool adapts = kind == Finetuning::lora || !task.trains();
  if (adapts && folders != nullptr) load_adapter_path(deck, config, task, *folders);
  config.quantization.resolve(deck, config.model, adapts ? "" : trained_in_full);
  if (!task.trains()) return;
  if (kind == Finetuning::lora) config.quantization.take(deck, config.source.quantization);
  if (kind != Finetuning::full && !config.source.fallback_checkpoint.empty()) {
    deck.fail("model.path",
              config.model.path +
                  ": the folder is gone, but the run needs its frozen weights, which are "
                  "not in its checkpoints: restore the folder",
              ExitCode::missing_input);
  }
  if (kind == Finetuning::freeze) {
    config.freeze.resolve(deck, config.model);
  } else {
    mark_unused(deck, keys, "freeze");
  }
  if (kind == Finetuning::lora) {
    check_loftq(deck, config);
    return config.lora.resolve(deck, config.model, folders == nullptr);
  }
  for (const std::string_view name : keys.names_in("lora")) {
    const std::string key = fmt::format("lora.{}", name);
    if (deck.given(key)) deck.fail(key, "needs run.finetuning = lora");
  }
  mark_unused(deck, keys, "lora");
}

/// Reports settings that do not fit a model that scores texts.
void check_scoring(DeckLoader& deck, const Config& config) {
  const std::string task = fmt::format("run.task = {}", name_of(config.run.task));
  deck.check(config.log.samples_every_steps == 0, {"log.samples_every_steps"},
             task + " scores texts and writes none: remove the key");
  deck.check(config.evaluation.tasks.empty(), {"evaluation.tasks"}, task + " scores whole texts: remove the key");
  deck.check(config.evaluation.stride == 0, {"evaluation.stride"}, task + " scores whole texts: remove the key");
  deck.check(config.checkpoint.best_metric != "validation/token_accuracy", {"checkpoint.best_metric"},
             task + " predicts no tokens: choose another metric, such as validation/loss");
}

/// Reports errors and notes about the data files. Returns the vocabulary that they need, 0 = not yet known.
int64_t examine_files(DeckLoader& deck, const Config& config, const SampleRules& rules) {
  if (!deck.sound({"data.train", "data.validation", "data.tokenizer", "data.document_separator", "data.format",
                   "data.columns"}))
    return 0;
  if (config.data.train.empty() && config.data.validation.empty()) return 0;       // reported as missing elsewhere
  const bool alone = rules.validation.empty() && !config.data.validation.empty();  // they replace the training files
  const DataFacts facts = check_data_files(rules, [&](std::string_view key, const UserError& error) {
    const bool reported = !deck.given(key) && !deck.sound({"model.path"});  // its folder has the tokenizer, too
    if (key == "data.tokenizer" && reported) return;
    deck.fail(alone && key == "data.train" ? "data.validation" : key, error.what(), error.code());
  });
  if (!facts.note.empty()) deck.note("data.tokenizer", facts.note);
  const int64_t rows = config.model.vocab_size, vocabulary = facts.vocabulary_size;
  deck.check(rows == 0 || rows >= vocabulary, {"model.vocab_size"}, too_few_rows(rows, vocabulary));
  return vocabulary;
}

/// Reports settings that do not fit a curriculum of difficulties.
void check_difficulty(DeckLoader& deck, const Config& config) {
  using Kind = CurriculumConfig::Difficulty::Kind;
  const CurriculumConfig& curriculum = config.curriculum;
  if (curriculum.strategy != CurriculumConfig::Strategy::difficulty) return;
  deck.check(!config.data.group_by_length, {"curriculum.strategy", "data.group_by_length"},
             "cannot be combined: both choose the order of samples");
  if (curriculum.draws_by(Kind::column)) {
    deck.check(std::ranges::find(config.data.train, builtin_stories) == config.data.train.end(),
               {"curriculum.difficulty", "data.train"},
               fmt::format("{} is a text, which has no columns: choose another difficulty", builtin_stories));
  }
  if (!curriculum.draws_by(Kind::loss)) return;
  deck.check(!config.model.path.empty(), {"curriculum.difficulty", "model.path"},
             "loss is the loss of the model that the run starts from: give its folder as model.path");
  if (config.source.fallback_checkpoint.empty()) return;
  deck.fail(
      "model.path",
      config.model.path +
          ": the folder is gone, but curriculum.difficulty = loss orders samples by its model: restore the folder",
      ExitCode::missing_input);
}

/// A run that has checkpoints resumes from its own, even if another run's checkpoint is gone.
void check_resume(DeckLoader& deck, const Config& config) {
  const std::string path = config.checkpoint.resume_path();
  std::error_code ignored;
  if (path.empty() || std::filesystem::is_directory(path, ignored)) return;
  if (std::filesystem::is_directory(config.run.output + "/" + config.run.name + "/checkpoints", ignored)) return;
  constexpr std::array<std::string_view, 3> words = {"auto", "required", "never"};
  deck.fail("checkpoint.resume", fmt::format("{}: there is no such checkpoint{}", path, did_you_mean(path, words)),
            ExitCode::missing_input);
}

/// Reports settings that do not fit the evaluations.
void check_evaluation(DeckLoader& deck, const Config& config, const TaskRules& task) {
  const EvaluationConfig& e = config.evaluation;
  const DataConfig& data = config.data;
  deck.check(e.metrics.empty() || !deck.given("data.packing") || data.packing != DataConfig::Packing::wrap,
             {"evaluation.metrics", "data.packing"}, "wrap would cut prompts; remove data.packing");
  if (!task.trains()) return;
  deck.unused("evaluation.stride", "only for run.task = evaluate");
  const bool epochs = e.every_epochs > 0;
  deck.unused(epochs ? "evaluation.every_steps" : "evaluation.every_epochs",
              epochs ? "every_epochs is given" : "every_steps applies");
  if (e.early_stopping_patience == 0) {
    deck.unused("evaluation.early_stopping_threshold", "no effect with early_stopping_patience = 0");
    return;
  }
  deck.check(e.every_steps > 0, {"evaluation.early_stopping_patience", "evaluation.every_steps"},
             "early stopping needs evaluation.every_steps above 0");
  deck.check(!data.validation.empty() || data.validation_fraction > 0 || !e.tasks.empty(),
             {"evaluation.early_stopping_patience", "data.validation", "data.validation_fraction"},
             "early stopping needs validation data: give data.validation, or data.validation_fraction above 0");
  check_best_is_measured(deck, config, "evaluation.early_stopping_patience");
}

/// Returns true also where errors hide what is trained.
bool trains_router_biases(const DeckLoader& deck, const Config& config) {
  using Finetuning = RunConfig::Finetuning;
  const ModelConfig& model = config.model;
  if (config.run.finetuning == Finetuning::full || !model.has_router_bias()) return true;
  if (!deck.sound({"model.path", "model.family", "model.n_layers", "model.n_experts"})) return true;
  const std::string pattern = nominal_shape(model).names.selection_bias;
  const std::set<std::string, std::less<>> trained = config.run.finetuning == Finetuning::lora
                                                         ? choose_adapters(config.lora, model).trained
                                                         : choose_trained(config.freeze, model).trained;
  return std::ranges::any_of(trained, [&](const std::string& name) { return name.ends_with(last_part_of(pattern)); });
}

/// Sets what the deck leaves to the model.
void resolve_router_losses(DeckLoader& deck, Config& config) {
  const ModelConfig& model = config.model;
  ObjectiveConfig& objective = config.objective;
  if (!model.experts.exist()) {
    deck.unused("objective.router_aux", "the model has no experts");
    deck.unused("objective.router_bias_rate", "the model has no experts");
    return deck.unused("objective.router_z_loss", "the model has no experts");
  }
  const bool softmax = model.experts.score == ExpertsConfig::Score::softmax;
  if (!deck.given("objective.router_aux")) {
    objective.router_aux = softmax ? model.router_aux : 0;
    deck.set("objective.router_aux", Origin::family);
  }
  deck.check(softmax || (objective.router_aux == 0 && objective.router_z_loss == 0),
             {"objective.router_aux", "objective.router_z_loss", "model.router_score"},
             "losses of routers need router_score = softmax");
  deck.check(objective.router_bias_rate == 0 || model.has_router_bias(), {"objective.router_bias_rate", "model.family"},
             "the model's routers have no biases: use router_aux, or deepseek_v3");
  if (objective.router_bias_rate == 0 || trains_router_biases(deck, config)) return;
  objective.router_bias_rate = 0;
  deck.unused("objective.router_bias_rate",
              fmt::format("no effect with run.finetuning = {}, which keeps the biases of the routers",
                          name_of(config.run.finetuning)));
}

void resolve_training(DeckLoader& deck, Config& config) {
  config.optimizer.resolve(deck);
  config.schedule.resolve(deck);
  resolve_checkpoint(deck, config);
  note_lengths(deck, config);
}

/// The labels are those of the deck, or else of the model's folder, which has a head for its own alone.
void take_labels(DeckLoader& deck, Config& config, bool loaded) {
  ClassifyConfig& classify = config.classify;
  ModelConfig& model = config.model;
  classify.resolve(deck);
  if (loaded && !config.source.new_head && config.source.checkpoint.empty()) {
    if (!deck.given("classify.problem") && classify.problem != model.problem) {
      classify.problem = model.problem;
      deck.set("classify.problem", Origin::automatic, "model.path");
    }
    deck.check(
        classify.labels.empty() || classify.labels == model.labels, {"classify.labels", "model.path"},
        fmt::format("the head of {} is for the labels {}, in this order: remove the key, or start from a model "
                    "without such a head",
                    model.path, joined(std::vector<std::string_view>(model.labels.begin(), model.labels.end()))));
    deck.check((classify.problem == LabelProblem::regression) == model.labels.empty(),
               {"classify.problem", "model.path"},
               model.labels.empty() ? model.path + ": its head gives a number: set regression"
                                    : model.path + ": its head has labels: set single or multi");
    if (classify.labels.empty() && !model.labels.empty()) {
      classify.labels = model.labels;
      deck.set("classify.labels", Origin::automatic, "model.path");
    }
  }
  model.labels = classify.labels;
  model.problem = classify.problem;
}

/// Loads the properties of the model, and resolves the sections of all tasks that have one. Returns false where the
/// model of model.path is not known, because there is none or for an error.
bool resolve_model_task(DeckLoader& deck, const DeckKeys& keys, Config& config, const TaskRules& task,
                        ModelFolders* folders) {
  std::optional<ModelConfig> loaded;
  if (folders != nullptr) {
    loaded = load_model_path(deck, config, task, *folders);
    take_sequence_length(deck, config, task, loaded, *folders);
  } else if (!config.model.path.empty()) {
    loaded = config.model;
  }
  config.batch.resolve(deck, config.data.max_tokens_per_batch);
  if (folders != nullptr && task.trains()) grow_vocabulary(deck, config, *folders, loaded);
  config.model.resolve(deck, config.batch.sequence_length, loaded ? &*loaded : nullptr, task.head(config));
  if (label_tasks.contains(task.task())) take_labels(deck, config, loaded && folders != nullptr);
  resolve_finetuning(deck, keys, config, task, folders);
  config.data.resolve(deck, config.run.output, config.run.seed, task.data());
  if (config.model.scores()) check_scoring(deck, config);
  config.chat.resolve(deck);
  deck.check(config.data.max_tokens_per_batch == 0 || config.parallel.reduction_groups == 0,
             {"parallel.reduction_groups", "data.max_tokens_per_batch"},
             "cannot be combined with data.max_tokens_per_batch: the number of micro-batches varies; remove it");
  if (config.curriculum.active() || task.trains()) config.curriculum.resolve(deck, config.batch.sequence_length);
  check_difficulty(deck, config);
  config.precision.resolve(deck);
  if (task.trains() && config.optimizer.paged()) {
    config.parallel.page_states(deck, fmt::format("for {}", name_of(config.optimizer.name)));
  }
  using Optimizer = OptimizerConfig::Name;
  const Optimizer optimizer = config.optimizer.name;
  deck.check(
      config.model.mup_base_width == 0 || (optimizer <= Optimizer::paged_adamw_8bit || optimizer == Optimizer::lion),
      {"model.mup_base_width", "optimizer.name"},
      "its factors are those of adamw, also with 8 bits, and lion: choose one of them");
  deck.check(config.model.mup_base_width == 0 || config.run.finetuning != RunConfig::Finetuning::lora,
             {"model.mup_base_width", "run.finetuning"}, "adapters have one rate at all widths: remove it");
  config.parallel.resolve(deck, config.batch.gradient_accumulation_steps);
  config.evaluation.resolve(deck);
  check_evaluation(deck, config, task);
  config.log.resolve(deck);
  config.dashboard.resolve(deck);
  config.divergence.resolve(deck);
  if (task.trains()) resolve_router_losses(deck, config);
  task.check(deck, config);
  if (folders != nullptr) load_role_folders(deck, config, task, *folders);
  check_mesh(deck, config);
  if (!task.has_dropout()) {
    const std::string why =
        fmt::format("run.task = {} compares log-probabilities, without dropout", name_of(task.task()));
    config.model.drop_dropout(deck, why);
    config.lora.drop_dropout(deck, why);
  }
  return loaded.has_value();
}

}  // namespace

Config load_config(std::string_view deck_text, const std::string& deck_name, std::span<const std::string> overrides,
                   DeckFiles files, ModelFolders* folders) {
  Config config;
  ModelFolders own_folders;
  DeckKeys keys;
  config.visit(keys);
  DeckLoader deck(keys, deck_name);
  deck.load(deck_text, overrides, exclusive_keys, [&](const DeckKeys::Key& key) {
    return key.tasks.contains(config.run.task) && task_rules(config.run.task).needs(key.full_name());
  });
  const TaskRules& task = task_rules(config.run.task);
  const bool recorded = files == DeckFiles::recorded;
  config.run.resolve(deck, deck_name, task.data());
  config.watchdog.resolve(deck);
  bool loaded = false;
  if (task.data().is_tokenizer) {
    config.data.resolve(deck, config.run.output, config.run.seed, task.data());
  } else {
    if (folders == nullptr) folders = &own_folders;
    loaded = resolve_model_task(deck, keys, config, task, recorded ? nullptr : folders);
  }
  mark_unused(deck, keys, config.run.task);
  deck.check(config.data.cache != config.run.output + "/" + config.run.name, {"run.name", "run.output", "data.cache"},
             "the run's folder would be data.cache, the folder of token files: choose another name");
  if (task.trains()) {
    resolve_training(deck, config);
    if (!recorded) check_resume(deck, config);
  }
  config.provenance = deck.provenance();
  int64_t vocabulary = 0;
  if (files == DeckFiles::examine || files == DeckFiles::examine_data) {
    if (config.source.tokenizer_from.empty()) config.data.check_tokenizer_name(deck);
    vocabulary = examine_files(deck, config, task.sample_rules(config));
    task.examine(deck, config);
  }
  if (files == DeckFiles::examine && loaded) examine_weights(deck, config);
  deck.finish();
  config.notes = deck.notes();
  RunFacts facts(config);
  if (facts.vocabulary == 0) facts.vocabulary = vocabulary;
  return with_facts(std::move(config), facts);
}

}  // namespace llmtrain
