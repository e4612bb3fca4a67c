// The sections that belong to no part of the program but the run: [run], [evaluation], [log].

#include <fmt/format.h>

#include "core/utf8.hpp"
#include "train/config/config.hpp"

namespace llmtrain {
namespace {

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

}  // namespace

void RunConfig::visit(DeckKeys& keys) {
  keys.section("run", "Name the run, choose its task and its length, and say where its results go.");
  keys.key<RunNameCodec>("name", name,
                         {.doc = "Of the run: results lie in <output>/<name>/.",
                          .automatic = "the deck's file name",
                          .change = Change::nothing});
  keys.key(
      "task", task,
      {.doc =
           "pretrain: learn to predict the next token of text; evaluate: how well model.path predicts the "
           "validation data (loss, perplexity, bits per byte, token accuracy); tokenizer: learn data.tokenizer = bpe "
           "from data.train, as tokenizer.json in the run's folder."});
  keys.key("output", output, {.doc = "Folder of run directories.", .change = Change::nothing});
  keys.key("seed", seed,
           {.range = at_least(0), .doc = "Of all random numbers: initial weights, sample order, dropout."});
  keys.key("overwrite", overwrite,
           {.doc = "An existing run directory is replaced, instead of gone on with or refused; by a requeued job once.",
            .change = Change::nothing});
  keys.key("max_steps", max_steps,
           {.unit = "steps",
            .range = at_least(1),
            .doc = "Optimizer steps of the run.",
            .automatic = "by epochs",
            .change = Change::applies});
  keys.key("epochs", epochs,
           {.range = {.min = 0, .max = 1e6, .open_min = true},
            .doc = "Instead of max_steps, one of which is required: passes over the training data, may be broken.",
            .automatic = "by max_steps",
            .change = Change::applies});
  keys.key<TimeLimitCodec>("time_limit", time_limit,
                           {.doc = "The run stops in time to save a checkpoint, with exit code 75. auto: what Slurm "
                                   "grants the job.",
                            .change = Change::nothing});
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
  keys.section("evaluation", "Measure the loss on validation data.", Change::nothing);
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
  keys.section("log", "Choose what is written while the run goes on, and how often.", Change::nothing);
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
