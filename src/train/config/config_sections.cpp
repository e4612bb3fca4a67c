// The sections of the run itself: [run], [evaluation], [log].

#include <fmt/format.h>

#include "core/utf8.hpp"
#include "train/config/config.hpp"

namespace llmtrain {
namespace {

/// Codec of "auto", "none" or a duration, as seconds.
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

/// Codec of a name that can be a folder.
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
  keys.section("run", "Task, name and length of the run.");
  keys.key<RunNameCodec>("name", name,
                         {.doc = "Name of the run, whose results are in <output>/<name>/.",
                          .automatic = "the deck's file name",
                          .change = Change::nothing});
  keys.key("task", task,
           {.doc = "pretrain: train a model to predict the next token; evaluate: score the validation data with "
                   "model.path (loss, perplexity, bits per byte, token accuracy); tokenizer: train the tokenizer of "
                   "data.tokenizer = bpe on data.train, and write tokenizer.json to the run's folder."});
  keys.key("output", output, {.doc = "Folder of run directories.", .change = Change::nothing});
  keys.key("seed", seed,
           {.range = at_least(0), .doc = "Seed of all random numbers: initial weights, sample order, dropout."});
  keys.key(
      "overwrite", overwrite,
      {.doc =
           "Replace an existing run directory instead of resuming or refusing it. A job that Slurm requeues resumes.",
       .change = Change::nothing});
  keys.key("max_steps", max_steps,
           {.unit = "steps",
            .range = at_least(1),
            .doc = "Number of optimizer steps.",
            .automatic = "by epochs",
            .change = Change::applies});
  keys.key("epochs", epochs,
           {.range = {.min = 0, .max = 1e6, .open_min = true},
            .doc = "Passes over the training data (fractions allowed). Give either epochs or max_steps.",
            .automatic = "by max_steps",
            .change = Change::applies});
  keys.key<TimeLimitCodec>("time_limit", time_limit,
                           {.doc = "Time limit of the job: the run saves a checkpoint before it and ends with exit "
                                   "code 75. auto: Slurm's limit.",
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
  if (!steps && !passes) deck.fail("run.max_steps", "is required unless run.epochs is given");
}

void EvaluationConfig::visit(DeckKeys& keys) {
  keys.section("evaluation", "Evaluation on validation data.", Change::nothing);
  keys.key("every_steps", every_steps,
           {.unit = "steps", .range = at_least(0), .doc = "Interval of evaluations; 0 = never during the run."});
  keys.key("at_start", at_start, {.doc = "Evaluate before the first step too."});
  keys.key("at_end", at_end, {.doc = "Evaluate after the last step too."});
  keys.key("batches", batches,
           {.range = at_least(0),
            .doc = "Number of batches of batch.global sequences, in canonical order; 0 = all validation data."});
  keys.key("early_stopping_patience", early_stopping_patience,
           {.unit = "evaluations",
            .range = at_least(0),
            .doc = "End the run after this many consecutive evaluations without an improvement of "
                   "checkpoint.best_metric; 0 = off."});
  keys.key("early_stopping_threshold", early_stopping_threshold,
           {.range = at_least(0), .doc = "Minimum improvement that counts (in nats, or as a fraction of tokens)."});
  keys.key("load_best_at_end", load_best_at_end,
           {.doc = "End with the weights of the best evaluation by checkpoint.best_metric, which are then exported. A "
                   "checkpoint follows every better evaluation."});
  keys.key(
      "stride", stride,
      {.unit = "tokens",
       .range = at_least(0),
       .doc = "Distance between windows of sequence_length tokens, with run.task = evaluate and packing = wrap. Every "
              "token is scored once, given all preceding tokens of its window. 0 = windows do not overlap."});
}

void EvaluationConfig::resolve(DeckLoader& deck, const Config& config) const {
  const DataConfig& data = config.data;
  if (config.run.task == RunConfig::Task::evaluate) {
    deck.check(stride == 0 || data.packing == DataConfig::Packing::wrap, {"evaluation.stride", "data.packing"},
               "windows are cut from a stream of tokens: they need data.packing = wrap");
    const int64_t length = config.batch.sequence_length;
    deck.check(stride <= length, {"evaluation.stride", "batch.sequence_length"},
               fmt::format("windows of batch.sequence_length = {} would skip tokens between them: use a smaller stride",
                           length));
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
             "early stopping needs validation data: give data.validation, or data.validation_fraction above 0");
}

void LogConfig::visit(DeckKeys& keys) {
  keys.section("log", "Output during the run, and its intervals.", Change::nothing);
  keys.key("every_steps", every_steps,
           {.unit = "steps", .range = at_least(0), .doc = "Interval of progress lines; 0 = never."});
  keys.key("sinks", sinks, {.doc = "Files for metrics, besides the console: metrics.h5, metrics.jsonl."});
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
      "profile", profile,
      {.unit = "steps",
       .range = between(0, 1000),
       .doc = "Profile this many steps (the first one is skipped): the log gets a table of their time, and the run's "
              "folder gets trace.json for a trace viewer. Recording ends early if a rank has 65,536 spans. 0 = off."});
}

void LogConfig::resolve(DeckLoader& deck) const {
  if (samples_every_steps > 0) return;
  for (const char* key :
       {"log.sample_prompts", "log.sample_length", "log.sample_temperature", "log.sample_top_k", "log.sample_top_p"}) {
    deck.unused(key, "no effect with samples_every_steps = 0");
  }
}

}  // namespace llmtrain
