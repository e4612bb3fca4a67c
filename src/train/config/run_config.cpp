#include "train/config/run_config.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"
#include "core/utf8.hpp"

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
  keys.section("run", "What the job does, and where its results go.");
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

}  // namespace llmtrain
