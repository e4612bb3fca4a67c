#include "train/config/load_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <utility>

#include "core/deck/suggestion.hpp"
#include "data/dataset.hpp"
#include "generate/prompt_files.hpp"
#include "train/config/sequence_length.hpp"

namespace llmtrain {
namespace {

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
    "needs run.finetuning = lora: the steps of an optimizer are smaller than the distance of two codes, so that a "
    "matrix "
    "in 4 or 8 bits would not move; adapters in the compute type are trained beside it";

/// `folders`: null for a recorded deck, which has the properties of its adapters.
void resolve_finetuning(DeckLoader& deck, const DeckKeys& keys, Config& config, ModelFolders* folders) {
  using Finetuning = RunConfig::Finetuning;
  const Finetuning kind = config.run.finetuning;
  const bool adapts = kind == Finetuning::lora || !trains(config.run.task);
  if (adapts && folders != nullptr) load_adapter_path(deck, config, *folders);
  config.quantization.resolve(deck, config.model, adapts ? "" : trained_in_full);
  if (!trains(config.run.task)) return;
  if (kind == Finetuning::lora && config.source.quantization.active() && !deck.given("quantization.bits")) {
    config.quantization = config.source.quantization;  // checkpoints record how the base is stored
    for (const std::string_view name : keys.names_in("quantization")) {
      deck.set(fmt::format("quantization.{}", name), Origin::automatic, "model.path");
    }
  }
  if (kind != Finetuning::full && !config.source.instead.empty()) {
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
  if (kind == Finetuning::lora) return config.lora.resolve(deck, config.model, folders == nullptr);
  for (const std::string_view name : keys.names_in("lora")) {
    const std::string key = fmt::format("lora.{}", name);
    if (deck.given(key)) deck.fail(key, "needs run.finetuning = lora");
  }
  mark_unused(deck, keys, "lora");
}

/// Keys of a model that scores pairs.
void score_documents(DeckLoader& deck, Config& config) {
  config.data.scores_documents = true;
  config.data.use = DataUse::pairs;
  deck.check(config.log.samples_every_steps == 0, {"log.samples_every_steps"},
             "a reward model scores texts and writes none: remove the key");
  deck.check(config.evaluation.tasks.empty(), {"evaluation.tasks"},
             "a reward model scores whole texts: remove the key");
  deck.check(config.evaluation.stride == 0, {"evaluation.stride"}, "a reward model scores whole texts: remove the key");
  deck.check(config.checkpoint.best_metric != "validation/token_accuracy", {"checkpoint.best_metric"},
             "a reward model predicts no tokens: choose another metric, such as validation/loss");
}

void resolve_tokenizer_task(DeckLoader& deck, Config& config) {
  if (!deck.given("data.tokenizer")) {
    config.data.tokenizer = "bpe";
    deck.set("data.tokenizer", Origin::automatic, "run.task = tokenizer");
  }
  deck.check(config.data.tokenizer == "bpe", {"data.tokenizer"}, "run.task = tokenizer only trains bpe");
  config.data.validation.clear();
  config.data.resolve(deck, config.run.output, config.run.task, config.run.seed);
}

void require_model_path(DeckLoader& deck, const Config& config) {
  if (deck.given("model.path")) return;
  deck.fail("model.path",
            fmt::format("is required with run.task = {}: give the folder of the model", name_of(config.run.task)));
}

void check_windows(DeckLoader& deck, const ModelConfig& model, const CachePolicy& cache, const char* key) {
  bool windows = false;
  for (int64_t layer = 0; layer < model.n_layers; ++layer) windows |= model.window_of_layer(layer) > 0;
  deck.check(cache.kind == CachePolicy::Kind::full || !windows, {key},
             "the model's own sliding window leaves keys out already: choose full");
}

void resolve_generation_task(DeckLoader& deck, Config& config) {
  require_model_path(deck, config);
  config.generate.resolve(deck, config.batch.sequence_length, config.batch.micro);
  check_windows(deck, config.model, config.generate.cache, "generate.cache");
  deck.check(config.data.has_tokenizer_files() || config.data.tokenizer == "bytes", {"data.tokenizer"},
             "prompts need the tokenizer that the model was trained with: give its file or folder");
}

void resolve_evaluation_task(DeckLoader& deck, const Config& config) {
  require_model_path(deck, config);
  if (!config.data.validation.empty()) {
    deck.set("data.train", Origin::unused, "data.validation is evaluated");
  } else if (!deck.given("data.train") && config.evaluation.tasks.empty() && deck.sound({"data.validation"})) {
    deck.fail(
        "data.validation",
        "is required with run.task = evaluate (or give data.train, whose last validation_fraction is evaluated, or "
        "evaluation.tasks)");
  }
}

/// Reports errors and notes about the data files. Returns the vocabulary that they need, 0 = not yet known.
int64_t examine_files(DeckLoader& deck, const Config& config) {
  if (!deck.sound({"data.train", "data.validation", "data.tokenizer", "data.document_separator", "data.format",
                   "data.columns"}))
    return 0;
  if (config.data.train.empty() && config.data.validation.empty()) return 0;  // reported as missing elsewhere
  const bool evaluates = config.run.task == Task::evaluate;
  const bool alone = evaluates && !config.data.validation.empty();  // validation files replace training files
  const DataFacts facts = check_data_files(
      evaluates ? evaluated_data(config.data) : config.data, [&](std::string_view key, const UserError& error) {
        const bool reported = !deck.given(key) && !deck.sound({"model.path"});  // its folder has the tokenizer, too
        if (key == "data.tokenizer" && reported) return;
        deck.fail(alone && key == "data.train" ? "data.validation" : key, error.what(), error.code());
      });
  if (!facts.note.empty()) deck.note("data.tokenizer", facts.note);
  const int64_t rows = config.model.vocab_size, vocabulary = facts.vocabulary_size;
  deck.check(rows == 0 || rows >= vocabulary, {"model.vocab_size"}, too_few_rows(rows, vocabulary));
  return vocabulary;
}

/// Reports errors of the files with prompts.
void examine_prompts(DeckLoader& deck, const Config& config) {
  if (!deck.sound({"generate.prompts"})) return;
  try {
    check_prompt_files(config.generate.prompts, config.data.row_limit);
  } catch (const UserError& error) {
    deck.fail("generate.prompts", error.what(), error.code());
  }
}

/// Facts that a curriculum of difficulties needs of other sections.
void resolve_difficulty(DeckLoader& deck, Config& config) {
  using Kind = CurriculumConfig::Difficulty::Kind;
  const CurriculumConfig& curriculum = config.curriculum;
  if (curriculum.strategy != CurriculumConfig::Strategy::difficulty) return;
  deck.check(!config.data.group_by_length, {"curriculum.strategy", "data.group_by_length"},
             "cannot be combined: both choose the order of samples");
  if (curriculum.draws_by(Kind::column)) {
    config.data.difficulty = curriculum.difficulty.column;
    deck.check(std::ranges::find(config.data.train, builtin_stories) == config.data.train.end(),
               {"curriculum.difficulty", "data.train"},
               fmt::format("{} is a text, which has no columns: choose another difficulty", builtin_stories));
  }
  if (!curriculum.draws_by(Kind::loss)) return;
  deck.check(!config.model.path.empty(), {"curriculum.difficulty", "model.path"},
             "loss is the loss of the model that the run starts from: give its folder as model.path");
  if (config.source.instead.empty()) return;
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

/// What evaluations need of other sections.
void check_evaluation(DeckLoader& deck, const Config& config) {
  const EvaluationConfig& e = config.evaluation;
  const DataConfig& data = config.data;
  deck.check(e.metrics.empty() || !data.packing_given || data.packing != DataConfig::Packing::wrap,
             {"evaluation.metrics", "data.packing"}, "wrap would cut prompts; remove data.packing");
  if (config.run.task == Task::evaluate) {
    deck.check(e.stride == 0 || data.packing == DataConfig::Packing::wrap, {"evaluation.stride", "data.packing"},
               "windows are cut from a stream of tokens: they need data.packing = wrap");
    const int64_t length = config.batch.sequence_length;
    deck.check(e.stride <= length, {"evaluation.stride", "batch.sequence_length"},
               fmt::format("windows of batch.sequence_length = {} would skip tokens between them: use a smaller stride",
                           length));
    deck.check(e.stride == 0 || length >= 2, {"evaluation.stride", "batch.sequence_length"},
               "windows need batch.sequence_length = 2 or more: their last token is a target only");
    return;
  }
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

/// Passes whose log-probabilities are compared have no dropout.
void drop_dropout(DeckLoader& deck, Config& config) {
  const auto drop = [&](std::string_view key, double& probability) {
    if (probability == 0) return;
    probability = 0;
    deck.unused(key,
                fmt::format("run.task = {} compares log-probabilities, without dropout", name_of(config.run.task)));
  };
  drop("model.dropout", config.model.dropout);
  drop("model.attention_dropout", config.model.attention_dropout);
  drop("lora.dropout", config.lora.dropout);
}

void resolve_reinforcement(DeckLoader& deck, Config& config, DeckFiles files, ModelFolders* folders) {
  const bool grpo = config.run.task == Task::grpo;
  config.rollout.resolve(deck, config.batch.sequence_length);
  check_windows(deck, config.model, config.rollout.cache, "rollout.cache");
  config.rewards.resolve(deck, config.run.task);
  config.data.completion_tokens = config.rollout.max_new_tokens;
  if (grpo) {
    config.grpo.resolve(deck);
    if (deck.sound({"grpo.group_size", "batch.global"}) && config.grpo.group_size > 0) {
      const int64_t sequences = config.batch.global * config.grpo.mini_batches;
      deck.check(sequences % config.grpo.group_size == 0, {"batch.global", "grpo.group_size"},
                 fmt::format("an iteration has {} completions, which groups of {} do not divide", sequences,
                             config.grpo.group_size));
    }
  } else {
    config.ppo.resolve(deck);
    deck.check(
        !config.ppo.same_text || !config.ppo.value_model.empty(), {"ppo.value_model", "ppo.same_text"},
        "is missing: the critic reads the policy's tokens, which with ppo.same_text the reward model need not know");
    deck.check(!config.ppo.critic().empty(), {"ppo.value_model", "ppo.reward_model"},
               "is missing: give the folder of a model that scores, as which the critic begins, or policy");
    deck.check(!config.ppo.reward_model.empty() || !config.rewards.functions.empty(),
               {"ppo.reward_model", "rewards.functions"}, "is missing: nothing would give a reward");
  }
  deck.check(config.data.validation.empty(), {"data.validation"},
             fmt::format("has no effect with run.task = {}, whose rewards are means over new prompts: remove it",
                         name_of(config.run.task)));
  if (!deck.given("data.validation_fraction")) {
    config.data.validation_fraction = 0;
    deck.set("data.validation_fraction", Origin::automatic, fmt::format("for run.task = {}", name_of(config.run.task)));
  }
  deck.check(config.data.validation_fraction == 0, {"data.validation_fraction"},
             fmt::format("has no effect with run.task = {}, whose rewards are means over new prompts: remove it",
                         name_of(config.run.task)));
  deck.check(config.data.max_tokens_per_batch == 0, {"data.max_tokens_per_batch"},
             "has no effect on completions, whose length is not known in advance: use batch.micro");
  if (files != DeckFiles::recorded) load_reward_paths(deck, config, *folders);
}

/// States of a paged optimizer lie in host memory, or where offloaded parameters lie.
void page_states(DeckLoader& deck, Config& config) {
  constexpr const char* key = "parallel.offload_optimizer";
  if (!trains(config.run.task) || !config.optimizer.paged() || deck.given(key)) return;
  const Offload parameters = config.parallel.offload_parameters;
  config.parallel.offload_optimizer = parameters == Offload::none ? Offload::cpu : parameters;
  deck.set(key, Origin::automatic, fmt::format("for {}", name_of(config.optimizer.name)));
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
    const bool evaluates = config.run.task == Task::evaluate, generates = config.run.task == Task::generate;
    return key.tasks.contains(config.run.task) && !(evaluates && key.full_name() == "data.train") &&
           !((evaluates || generates) && key.full_name() == "batch.sequence_length");
  });
  config.run.resolve(deck, deck_name);
  config.watchdog.resolve(deck);
  std::optional<ModelConfig> loaded;
  if (config.run.task == Task::tokenizer) {
    resolve_tokenizer_task(deck, config);
  } else {
    if (folders == nullptr) folders = &own_folders;
    if (files != DeckFiles::recorded) {
      loaded = load_model_path(deck, config, *folders);
      take_sequence_length(deck, config, loaded, *folders);
    } else if (!config.model.path.empty()) {
      loaded = config.model;
    }
    config.batch.resolve(deck, config.data.max_tokens_per_batch);
    if (config.run.task == Task::reward) (loaded ? *loaded : config.model).head = ModelConfig::Head::score;
    if (files != DeckFiles::recorded && trains(config.run.task))
      grow_vocabulary(deck, config, folders != nullptr ? *folders : own_folders, loaded);
    config.model.resolve(deck, config.batch.sequence_length, loaded ? &*loaded : nullptr);
    resolve_finetuning(deck, keys, config, files == DeckFiles::recorded ? nullptr : folders);
    config.data.resolve(deck, config.run.output, config.run.task, config.run.seed);
    if (config.model.scores()) score_documents(deck, config);
    config.chat.resolve(deck);
    deck.check(config.data.max_tokens_per_batch == 0 || config.parallel.reduction_groups == 0,
               {"parallel.reduction_groups", "data.max_tokens_per_batch"},
               "cannot be combined with data.max_tokens_per_batch: the number of micro-batches varies; remove it");
    if (loaded) {
      config.data.embedding_rows = config.source.checkpoint.empty() ? config.model.vocab_size : config.source.tokens;
    }
    if (CurriculumConfig& curriculum = config.curriculum; curriculum.active() || trains(config.run.task)) {
      curriculum.resolve(deck, config.batch.sequence_length);
    }
    resolve_difficulty(deck, config);
    config.precision.resolve(deck);
    page_states(deck, config);
    config.parallel.resolve(deck, config.batch.gradient_accumulation_steps);
    if (config.evaluation.every_epochs > 0) config.evaluation.every_steps = 1;  // until the data are known
    config.evaluation.resolve(deck);
    check_evaluation(deck, config);
    config.log.resolve(deck);
    config.dashboard.resolve(deck);
    config.divergence.resolve(deck);
    if (config.run.task == Task::dpo) {
      config.dpo.resolve(deck);
      deck.check(
          config.dpo.sync_every == 0 || config.run.finetuning != RunConfig::Finetuning::lora,
          {"dpo.sync_every", "run.finetuning"},
          "the reference of a policy with adapters is its base model, which does not change: use full or freeze");
      config.data.max_prompt_length = config.dpo.max_prompt_length;
      if (files != DeckFiles::recorded) load_reference_path(deck, config, *folders);
    }
    if (reinforcement_tasks.contains(config.run.task)) resolve_reinforcement(deck, config, files, folders);
    if ((preference_tasks | reinforcement_tasks).contains(config.run.task)) drop_dropout(deck, config);
  }
  if (config.run.task == Task::evaluate) resolve_evaluation_task(deck, config);
  if (config.run.task == Task::generate) resolve_generation_task(deck, config);
  mark_unused(deck, keys, config.run.task);
  deck.check(config.data.cache != config.run.output + "/" + config.run.name, {"run.name", "run.output", "data.cache"},
             "the run's folder would be data.cache, the folder of token files: choose another name");
  if (trains(config.run.task)) {
    config.optimizer.resolve(deck);
    config.schedule.resolve(deck);
    config.checkpoint.resolve(deck, config);
    if (files != DeckFiles::recorded) check_resume(deck, config);
    note_lengths(deck, config);
  }
  const bool examines = files == DeckFiles::examine || files == DeckFiles::examine_data;
  if (examines) config.data.check_tokenizer_name(deck);
  const int64_t vocabulary = examines ? examine_files(deck, config) : 0;
  if (examines && config.run.task == Task::generate) examine_prompts(deck, config);
  if (files == DeckFiles::examine && loaded) examine_weights(deck, config);
  deck.finish();
  config.provenance = deck.provenance();
  if (config.model.vocab_size == 0 && vocabulary > 0) config.set_vocab_size(vocabulary);
  config.notes = deck.notes();
  return config;
}

}  // namespace llmtrain
