#include "train/config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/registry.hpp"
#include "core/utf8.hpp"
#include "data/dataset.hpp"

namespace llmtrain {
namespace {

constexpr std::array<DeckLoader::ExclusiveKeys, 4> exclusive_keys = {{
    {"run.max_steps", "run.epochs"},
    {"batch.global", "batch.gradient_accumulation_steps"},
    {"schedule.warmup_steps", "schedule.warmup_ratio"},
    {"schedule.decay_steps", "schedule.decay_ratio"},
}};

/// Keys that change no result.
constexpr std::array<std::string_view, 8> keys_without_effect = {
    "run.name",   "run.output",          "run.overwrite", "run.time_limit",
    "data.cache", "data.unpacked_limit", "parallel.zero", "parallel.cuda_graphs"};
constexpr std::array<std::string_view, 5> sections_without_effect = {"log", "evaluation", "checkpoint", "watchdog",
                                                                     "memory"};

bool is_offload(const DeckKeys::Key& key) { return key.section == "parallel" && key.name.starts_with("offload_"); }

/// auto, none or a duration, as seconds.
struct TimeLimitCodec {
  static int64_t parse(std::string_view text, const KeyInfo&) {
    if (text == "auto") return RunConfig::limit_of_job;
    return text == "none" ? 0 : parse_duration(text).seconds;
  }
  static std::string print(int64_t seconds) {
    if (seconds == RunConfig::limit_of_job) return "auto";
    return seconds == 0 ? "none" : print_duration({seconds});
  }
  static std::string type() { return "auto / none / duration"; }
};

/// Keys that a run may change when it goes on: nothing of its state depends on them.
bool may_change(std::string_view section, std::string_view name) {
  if (section == "schedule" || section == "divergence") return true;
  if (section == "optimizer") return name != "optimizer.name";
  if (section == "precision") return name != "precision.compute" && name != "precision.initial_loss_scale";
  constexpr std::array<std::string_view, 4> others = {"run.max_steps", "run.epochs", "model.dropout",
                                                      "model.attention_dropout"};
  return std::ranges::find(others, name) != others.end();
}

/// A name that can be a folder.
struct RunNameCodec {
  static std::string parse(std::string_view text, const KeyInfo&) {
    std::string name = parse_text(text);
    if (name == "." || name == ".." || name.find_first_of("/\n\t") != std::string::npos || name.size() > 200) {
      throw UserError(ExitCode::deck, fmt::format("'{}' cannot name a folder", text));
    }
    return name;
  }
  static std::string print(const std::string& name) { return print_text(name); }
  static std::string type() { return "text"; }
};

/// inputs/small.ini -> small
std::string run_name_of(std::string_view deck_name) {
  std::string_view name = deck_name.substr(deck_name.find_last_of('/') + 1);
  if (name.size() > 4 && name.ends_with(".ini")) name.remove_suffix(4);
  return std::string(name.empty() ? "run" : name);
}

/// Warm-up and decay must fit into the run. A run shortened on the command line is a trial: it gets a note only.
void check_lengths(DeckLoader& deck, const Config& config) {
  const int64_t steps = config.run.max_steps;
  if (steps == 0 || config.schedule.name == ScheduleConfig::Name::constant) return;
  const bool decays = config.schedule.name == ScheduleConfig::Name::warmup_stable_decay;
  const int64_t warmup = config.schedule.warmup_steps, decay = decays ? config.schedule.decay_steps : 0;
  if (warmup + decay <= steps || !deck.sound({"run.max_steps", "schedule.warmup_steps", "schedule.decay_steps"}))
    return;
  const std::string_view key = warmup > 0 ? "schedule.warmup_steps" : "schedule.decay_steps";
  const std::string what = fmt::format("{}{} steps do not fit into run.max_steps = {}", warmup > 0 ? warmup : decay,
                                       warmup > 0 && decay > 0 ? fmt::format(" and {} of decay", decay) : "", steps);
  const bool shortened = deck.provenance().at("run.max_steps").origin == Origin::command_line &&
                         deck.provenance().at(key).origin == Origin::deck;
  if (shortened) {
    deck.note(key, what);
  } else {
    deck.fail(key, what);
  }
}

/// Whether a task has a use for a key.
bool heeds(RunConfig::Task task, const DeckKeys::Key& key) {
  if (task == RunConfig::Task::pretrain) return true;
  constexpr std::array<std::string_view, 4> of_run = {"name", "task", "output", "overwrite"};
  constexpr std::array<std::string_view, 8> of_data = {
      "train", "tokenizer", "vocab_size", "document_separator", "text_column", "add_bos", "unpacked_limit", "cache"};
  if (key.section == "watchdog") return true;
  if (key.section == "precision" && key.name != "compute") return false;
  if (key.section == "run") return std::ranges::find(of_run, key.name) != of_run.end();
  if (task == RunConfig::Task::evaluate) {
    constexpr std::array<std::string_view, 6> sections = {"optimizer",  "schedule",  "divergence",
                                                          "checkpoint", "tokenizer", "log"};
    constexpr std::array<std::string_view, 12> others = {"data.vocab_size",
                                                         "data.shuffle",
                                                         "model.dropout",
                                                         "model.attention_dropout",
                                                         "parallel.reduction_groups",
                                                         "parallel.reduction_blocks",
                                                         "parallel.cuda_graphs",
                                                         "evaluation.every_steps",
                                                         "evaluation.at_start",
                                                         "evaluation.early_stopping_patience",
                                                         "evaluation.early_stopping_threshold",
                                                         "evaluation.load_best_at_end"};
    if (key.section == "log") return key.name == "sinks";
    if (is_offload(key)) return false;
    if (key.full_name() == "evaluation.at_end") return false;
    return std::ranges::find(sections, key.section) == sections.end() &&
           std::ranges::find(others, key.full_name()) == others.end();
  }
  if (key.section == "data") return std::ranges::find(of_data, key.name) != of_data.end();
  return key.section == "tokenizer";
}

/// Keys of other tasks are no mistake: one deck may serve several.
void mark_unheeded(DeckLoader& deck, const DeckKeys& keys, RunConfig::Task task) {
  for (const DeckKeys::Key& key : keys.keys()) {
    if (heeds(task, key)) continue;
    deck.set(key.full_name(), Origin::unused, fmt::format("no effect with run.task = {}", name_of(task)));
  }
}

void resolve_tokenizer_task(DeckLoader& deck, Config& config) {
  if (!deck.given("data.tokenizer")) {
    config.data.tokenizer = "bpe";
    deck.set("data.tokenizer", Origin::automatic, "run.task = tokenizer");
  }
  deck.check(config.data.tokenizer == "bpe", {"data.tokenizer"}, "run.task = tokenizer learns bpe");
  config.data.validation.clear();
  config.data.resolve(deck, config.run.output);
}

void resolve_evaluation_task(DeckLoader& deck, const Config& config) {
  if (!deck.given("model.path")) {
    deck.fail("model.path", "is required with run.task = evaluate: the folder of the model");
  }
  if (!config.data.validation.empty()) {
    deck.set("data.train", Origin::unused, "data.validation is evaluated");
  } else if (!deck.given("data.train") && deck.sound({"data.validation"})) {
    deck.fail("data.validation",
              "is required with run.task = evaluate (or data.train, of which the last "
              "validation_fraction is evaluated)");
  }
}

/// Reports what is wrong with the data files and returns the vocabulary that they need, 0 = not known yet.
int64_t examine_files(DeckLoader& deck, const Config& config) {
  if (!deck.sound({"data.train", "data.validation", "data.tokenizer", "data.document_separator"})) return 0;
  if (config.data.train.empty() && config.data.validation.empty()) return 0;  // reported as missing
  const bool evaluates = config.run.task == RunConfig::Task::evaluate;
  const bool alone = evaluates && !config.data.validation.empty();  // validation files take the place of training files
  const int64_t vocabulary = check_data_files(
      evaluates ? evaluated_data(config.data) : config.data, [&](std::string_view key, const UserError& error) {
        deck.fail(alone && key == "data.train" ? "data.validation" : key, error.what(), error.code());
      });
  const int64_t rows = config.model.vocab_size;
  deck.check(rows == 0 || rows >= vocabulary, {"model.vocab_size"}, too_few_rows(rows, vocabulary));
  return vocabulary;
}

/// A run that has checkpoints goes on from its own, whatever became of those of another.
void check_resume(DeckLoader& deck, const Config& config) {
  const std::string path = config.checkpoint.resume_path();
  std::error_code ignored;
  if (path.empty() || std::filesystem::is_directory(path, ignored)) return;
  if (std::filesystem::is_directory(config.run.output + "/" + config.run.name + "/checkpoints", ignored)) return;
  constexpr std::array<std::string_view, 3> words = {"auto", "required", "never"};
  deck.fail("checkpoint.resume", fmt::format("{}: there is no such checkpoint{}", path, did_you_mean(path, words)),
            ExitCode::missing_input);
}

}  // namespace

DataConfig evaluated_data(const DataConfig& data) {
  DataConfig evaluated = data;
  if (data.validation.empty()) return evaluated;
  evaluated.train = data.validation;
  evaluated.validation.clear();
  evaluated.validation_fraction = 0;
  return evaluated;
}

std::string too_few_rows(int64_t rows, int64_t vocabulary) {
  return fmt::format("{} is too small: the tokenizer has {} tokens, and the embedding needs a row for each", rows,
                     vocabulary);
}

void RunConfig::visit(DeckKeys& keys) {
  keys.section("run", "What the job does, and where its results go.");
  keys.key<RunNameCodec>("name", name,
                         {.doc = "Of the run: results lie in <output>/<name>/.", .automatic = "the deck's file name"});
  keys.key(
      "task", task,
      {.doc =
           "pretrain: learn to predict the next token of text; evaluate: how well model.path predicts the "
           "validation data (loss, perplexity, bits per byte, token accuracy); tokenizer: learn data.tokenizer = bpe "
           "from data.train, as tokenizer.json in the run's folder."});
  keys.key("output", output, {.doc = "Folder of run directories."});
  keys.key("seed", seed,
           {.range = at_least(0), .doc = "Of all random numbers: initial weights, sample order, dropout."});
  keys.key(
      "overwrite", overwrite,
      {.doc = "An existing run directory is replaced, instead of gone on with or refused; by a requeued job once."});
  keys.key("max_steps", max_steps,
           {.unit = "steps", .range = at_least(1), .doc = "Optimizer steps of the run.", .automatic = "by epochs"});
  keys.key("epochs", epochs,
           {.range = {.min = 0, .max = 1e6, .open_min = true},
            .doc = "Instead of max_steps, one of which is required: passes over the training data, may be broken.",
            .automatic = "by max_steps"});
  keys.key<TimeLimitCodec>("time_limit", time_limit,
                           {.doc = "The run stops in time to save a checkpoint, with exit code 75. auto: what Slurm "
                                   "grants the job."});
}

void RunConfig::resolve(DeckLoader& deck, std::string_view deck_name) {
  if (!deck.given("run.name")) {
    name = run_name_of(deck_name) + (task == Task::evaluate ? "-evaluate" : "");
    deck.set("run.name", Origin::automatic, "the deck's file name");
    if (find_invalid_utf8(name) != std::string::npos)
      deck.fail("run.name", "the deck's file name is not UTF-8: name the run");
  }
  if (task != Task::pretrain) return;
  const bool steps = deck.given("run.max_steps"), passes = deck.given("run.epochs");
  if (!steps) deck.unused("run.max_steps", "epochs is given");
  if (!passes) deck.unused("run.epochs", "max_steps is given");
  if (!steps && !passes) deck.fail("run.max_steps", "is required, or run.epochs");
}

void EvaluationConfig::visit(DeckKeys& keys) {
  keys.section("evaluation", "The loss on validation data.");
  keys.key("every_steps", every_steps, {.unit = "steps", .range = at_least(0), .doc = "0 = never during the run."});
  keys.key("at_start", at_start, {.doc = "Also before the first step."});
  keys.key("at_end", at_end, {.doc = "Also after the last step."});
  keys.key(
      "batches", batches,
      {.range = at_least(0), .doc = "Batches of batch.global sequences, in canonical order; 0 = all validation data."});
  keys.key("early_stopping_patience", early_stopping_patience,
           {.unit = "evaluations",
            .range = at_least(0),
            .doc = "The run ends after this many evaluations in a row without a better one by checkpoint.best_metric; "
                   "0 = off."});
  keys.key("early_stopping_threshold", early_stopping_threshold,
           {.range = at_least(0), .doc = "Better is better by more than this (nats, or a share of tokens)."});
  keys.key("load_best_at_end", load_best_at_end,
           {.doc = "The run ends with the weights of its best evaluation, by checkpoint.best_metric: what is exported "
                   "are these. Every better evaluation is followed by a checkpoint."});
  keys.key("stride", stride,
           {.unit = "tokens",
            .range = at_least(0),
            .doc = "With run.task = evaluate and packing = wrap: windows of sequence_length tokens begin this far "
                   "apart, and every token is scored once, with all of its window before it. 0 = windows do not "
                   "overlap."});
}

void EvaluationConfig::resolve(DeckLoader& deck, const Config& config) const {
  const DataConfig& data = config.data;
  if (config.run.task == RunConfig::Task::evaluate) {
    deck.check(stride == 0 || data.packing == DataConfig::Packing::wrap, {"evaluation.stride", "data.packing"},
               "windows are cut from a stream of tokens: they need data.packing = wrap");
    const int64_t length = config.batch.sequence_length;
    deck.check(stride <= length, {"evaluation.stride", "batch.sequence_length"},
               fmt::format("windows of batch.sequence_length = {} would leave tokens out between them", length));
    deck.check(stride == 0 || length >= 2, {"evaluation.stride", "batch.sequence_length"},
               "windows need batch.sequence_length = 2 or more: their last token is a target only");
    return;
  }
  deck.unused("evaluation.stride", "only for run.task = evaluate");
  if (early_stopping_patience == 0) {
    deck.unused("evaluation.early_stopping_threshold", "no effect with early_stopping_patience = 0");
    return;
  }
  deck.check(every_steps > 0, {"evaluation.early_stopping_patience", "evaluation.every_steps"},
             "early stopping needs evaluation.every_steps above 0");
  deck.check(!data.validation.empty() || data.validation_fraction > 0,
             {"evaluation.early_stopping_patience", "data.validation", "data.validation_fraction"},
             "early stopping needs validation data: data.validation, or data.validation_fraction above 0");
}

void LogConfig::visit(DeckKeys& keys) {
  keys.section("log", "What is written while the run goes on, and how often.");
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
  keys.key("profile", profile,
           {.unit = "steps",
            .range = between(0, 1000),
            .doc = "So many steps, after the first of a job, are taken apart: a table of where their time goes, and "
                   "trace.json in the run's folder for a trace viewer; 0 = off."});
}

void LogConfig::resolve(DeckLoader& deck) const {
  if (samples_every_steps > 0) return;
  for (const char* key :
       {"log.sample_prompts", "log.sample_length", "log.sample_temperature", "log.sample_top_k", "log.sample_top_p"}) {
    deck.unused(key, "no effect with samples_every_steps = 0");
  }
}

void Config::visit(DeckKeys& keys) {
  run.visit(keys);
  model.visit(keys);
  data.visit(keys);
  batch.visit(keys);
  optimizer.visit(keys);
  schedule.visit(keys);
  precision.visit(keys);
  parallel.visit(keys);
  memory.visit(keys);
  watchdog.visit(keys);
  divergence.visit(keys);
  checkpoint.visit(keys);
  evaluation.visit(keys);
  log.visit(keys);
}

void Config::set_vocab_size(int64_t size) {
  model.vocab_size = size;
  provenance.set("model.vocab_size", Origin::automatic, "the tokenizer's");
}

void Config::set_compute(PrecisionConfig::Compute compute) {
  precision.compute = compute;
  provenance.set("precision.compute", Origin::automatic, "the device's");
}

std::string read_deck_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw UserError(ExitCode::missing_input, fmt::format("{}: {}: give the path of a deck (.ini; some are in inputs/)",
                                                         path, std::strerror(errno)));
  std::string text(max_deck_bytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.fail() && !file.eof())) {
    throw UserError(ExitCode::missing_input, fmt::format("{}: cannot be read (is it a folder?)", path));
  }
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > max_deck_bytes) {
    throw UserError(ExitCode::deck, fmt::format("{}: a deck has at most 1 MiB; is this the right file?", path));
  }
  return text;
}

Config load_config(std::string_view deck_text, const std::string& deck_name, std::span<const std::string> overrides,
                   DeckFiles files, ModelFolders* folders) {
  Config config;
  ModelFolders own_folders;
  DeckKeys keys;
  config.visit(keys);
  DeckLoader deck(keys, deck_name);
  deck.load(deck_text, overrides, exclusive_keys, [&](const DeckKeys::Key& key) {
    const bool evaluates = config.run.task == RunConfig::Task::evaluate;
    return heeds(config.run.task, key) && !(evaluates && key.full_name() == "data.train");
  });
  config.run.resolve(deck, deck_name);
  config.watchdog.resolve(deck);
  std::optional<ModelConfig> loaded;
  if (config.run.task == RunConfig::Task::tokenizer) {
    resolve_tokenizer_task(deck, config);
  } else {
    config.batch.resolve(deck);
    if (files != DeckFiles::recorded) {
      loaded = load_model_path(deck, config, folders != nullptr ? *folders : own_folders);
    } else if (!config.model.path.empty()) {
      loaded = config.model;
    }
    config.model.resolve(deck, config.batch.sequence_length, loaded ? &*loaded : nullptr);
    config.data.resolve(deck, config.run.output);
    config.precision.resolve(deck);
    config.parallel.resolve(deck, config.batch.gradient_accumulation_steps);
    config.evaluation.resolve(deck, config);
    config.log.resolve(deck);
    config.divergence.resolve(deck);
  }
  if (config.run.task == RunConfig::Task::evaluate) resolve_evaluation_task(deck, config);
  mark_unheeded(deck, keys, config.run.task);
  deck.check(config.data.cache != config.run.output + "/" + config.run.name, {"run.name", "run.output", "data.cache"},
             "the run would lie in data.cache, the folder of token files: choose another name");
  if (config.run.task == RunConfig::Task::pretrain) {
    config.schedule.resolve(deck);
    config.checkpoint.resolve(deck, config);
    if (files != DeckFiles::recorded) check_resume(deck, config);
    check_lengths(deck, config);
  }
  const bool examines = files == DeckFiles::examine || files == DeckFiles::examine_data;
  const int64_t vocabulary = examines ? examine_files(deck, config) : 0;
  if (files == DeckFiles::examine && loaded) examine_weights(deck, config);
  deck.finish();
  config.provenance = deck.provenance();
  if (config.model.vocab_size == 0 && vocabulary > 0) config.set_vocab_size(vocabulary);
  config.notes = deck.notes();
  return config;
}

namespace {

/// Calls see(key, text) for every key that the resolved deck and the configuration give another effect.
template <class See>
void each_difference(const Config& config, std::string_view resolved_deck, const std::string& deck_name,
                     const See& see) {
  Config here = config, there = load_config(resolved_deck, deck_name, {}, DeckFiles::recorded);
  DeckKeys here_keys, there_keys;
  here.visit(here_keys);
  there.visit(there_keys);
  for (const DeckKeys::Key& key : here_keys.keys()) {
    const std::string name = key.full_name();
    const Origin origin = config.provenance.at(name).origin;
    const bool of_evaluation = config.run.task == RunConfig::Task::evaluate && key.section == "evaluation";
    if ((!of_evaluation && std::ranges::find(sections_without_effect, key.section) != sections_without_effect.end()) ||
        std::ranges::find(keys_without_effect, name) != keys_without_effect.end() || is_offload(key))
      continue;
    if (origin == Origin::unused) continue;
    const bool found_out = name == "model.vocab_size" || name == "precision.compute";
    if (found_out && (origin == Origin::automatic || key.print() == "auto")) continue;
    const std::string mine = key.print(), other = there_keys.find(name)->print();
    if (mine != other) see(key, fmt::format("{}: {} there, {} here", name, other, mine));
  }
}

}  // namespace

std::vector<std::string> differences(const Config& config, std::string_view resolved_deck, const std::string& deck_name,
                                     bool length) {
  std::vector<std::string> found;
  each_difference(config, resolved_deck, deck_name, [&](const DeckKeys::Key& key, const std::string& text) {
    const bool of_length = key.section == "run" && (key.name == "max_steps" || key.name == "epochs");
    if (length || !of_length) found.push_back(text);
  });
  return found;
}

DeckChanges changes_since(const Config& config, std::string_view resolved_deck, const std::string& deck_name) {
  DeckChanges changes;
  each_difference(config, resolved_deck, deck_name, [&](const DeckKeys::Key& key, const std::string& text) {
    (may_change(key.section, key.full_name()) ? changes.applied : changes.breaking).push_back(text);
  });
  return changes;
}

std::string write_deck(const Config& config) {
  Config copy = config;  // the listing wants fields it could write to
  DeckKeys keys;
  copy.visit(keys);
  return write_deck(keys, config.provenance, "Resolved deck: every key, and behind it where its value comes from.");
}

std::string help_text(std::string_view topic) {
  DeckKeys keys;
  Config defaults;
  defaults.visit(keys);
  return deck_help(keys, topic);
}

std::string deck_manual() {
  DeckKeys keys;
  Config defaults;
  defaults.visit(keys);
  return deck_manual(keys);
}

}  // namespace llmtrain
