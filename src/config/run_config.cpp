#include "config/run_config.hpp"

#include <fmt/format.h>

#include "core/deck/deck.hpp"
#include "core/utf8.hpp"
#include "data/data_config.hpp"

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
/// "pretrain: train a model to predict the next token. sft: ... "
#define LLMTRAIN_TASK(name, samples, help) #name ": " help ". "
constexpr std::string_view task_help = LLMTRAIN_TASKS(LLMTRAIN_TASK);
#undef LLMTRAIN_TASK

std::string run_name_of(std::string_view deck_name) {
  std::string_view name = deck_name.substr(deck_name.find_last_of('/') + 1);
  if (name.size() > 4 && name.ends_with(".ini")) name.remove_suffix(4);
  return std::string(name.empty() ? "run" : name);
}

}  // namespace

void RunConfig::visit(DeckKeys& keys) {
  keys.section("run", "Name the run, choose its task and its length, and say where its results go.");
  keys.key<RunNameCodec>("name", name,
                         {.doc = "Name of the run, whose results are in <output>/<name>/.",
                          .automatic = "the deck's file name",
                          .change = Change::nothing});
  keys.key("task", task, {.doc = task_help.substr(0, task_help.size() - 1)});
  keys.key("finetuning", finetuning,
           {.doc = "Trained parameters. full: every one; lora: adapters, see [lora]; freeze: those that [freeze] "
                   "names.",
            .tasks = training_tasks});
  keys.key("output", output, {.doc = "Folder of run directories.", .change = Change::nothing});
  keys.key("seed", seed,
           {.range = at_least(0),
            .doc = "Seed of all random numbers: initial weights, sample order, dropout, sampled tokens.",
            .tasks = training_tasks | TaskSet{Task::generate}});
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
            .change = Change::applies,
            .tasks = training_tasks});
  keys.key("epochs", epochs,
           {.range = {.min = 0, .max = 1e6, .open_min = true},
            .doc = "Passes over the training data (fractions allowed). Give either epochs or max_steps.",
            .automatic = "by max_steps",
            .change = Change::applies,
            .tasks = training_tasks});
  keys.key<TimeLimitCodec>("time_limit", time_limit,
                           {.doc = "Time limit of the job: the run saves its state before it and ends with exit "
                                   "code 75. auto: Slurm's limit.",
                            .change = Change::nothing,
                            .tasks = training_tasks | TaskSet{Task::generate}});
}

void RunConfig::resolve(DeckLoader& deck, std::string_view deck_name, const TaskData& needs) {
  if (!deck.given("run.name")) {
    name = run_name_of(deck_name);
    if (!needs.trains() && !needs.is_tokenizer && name != name_of(task)) name += fmt::format("-{}", name_of(task));
    deck.set("run.name", Origin::automatic, "the deck's file name");
    if (find_invalid_utf8(name) != std::string::npos)
      deck.fail("run.name", "the deck's file name is not UTF-8: name the run");
  }
  if (!needs.trains()) return;
  const bool steps = deck.given("run.max_steps"), passes = deck.given("run.epochs");
  if (!steps) deck.unused("run.max_steps", "epochs is given");
  if (!passes) deck.unused("run.epochs", "max_steps is given");
  if (!steps && !passes) deck.fail("run.max_steps", "is required unless run.epochs is given");
}

}  // namespace llmtrain
