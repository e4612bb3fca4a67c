// The job of run.task = generate around its GenerationTask: tokenizer, prompts, run directory, console.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "core/activity.hpp"
#include "core/clock.hpp"
#include "data/tokenize/dataset_tokenizer.hpp"
#include "hf/config_json.hpp"
#include "hf/export.hpp"
#include "metrics/console.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "tasks/generation_task.hpp"
#include "tasks/tasks.hpp"
#include "text/chat/chat_export.hpp"
#include "text/tokens_beyond_embedding.hpp"
#include "train/checkpoint_model.hpp"
#include "train/run/job.hpp"
#include "train/run/stop_monitor.hpp"

namespace llmtrain {

namespace {

/// The deck must be resolved, with a model.path.
std::unique_ptr<GenerationTask> make_generation(const Config& config, const Dataset& data,
                                                const RankPosition& position) {
  return std::make_unique<GenerationTask>(config, untrained_policy(config, position, 0), data.tokenizer);
}

/// EOS and stop tokens of the tokenizer, the chat template and the model's files, and the deck's stop texts.
StopRules find_stops(const Config& config, const Dataset& data) {
  StopRules stop;
  const Tokenizer& tokenizer = *data.tokenizer;
  if (tokenizer.eos_id() >= 0) stop.ids.push_back(tokenizer.eos_id());
  std::vector<int64_t> more = export_chat(data.chat.config, tokenizer, data.chat.files).stop_ids;
  const bool recorded = !config.source.checkpoint.empty();
  const auto texts = recorded ? CheckpointModel::texts(config.source.checkpoint) : model_texts(config.model.path);
  for (const char* name : {"config.json", "generation_config.json"}) {
    const auto text = texts.find(name);
    if (text == texts.end()) continue;
    const TokenIds ids = parse_generation_ids(text->second, config.model.path + "/" + name, {});
    more.insert(more.end(), ids.eos.begin(), ids.eos.end());
  }
  stop.ids.insert(stop.ids.end(), more.begin(), more.end());
  stop.ids.insert(stop.ids.end(), config.generate.stop_tokens.begin(), config.generate.stop_tokens.end());
  for (const std::string& text : config.generate.stop) {
    std::vector<int32_t> ids;
    tokenizer.encode(text, ids);
    if (ids.size() == 1 && tokenizer.is_special(ids.front())) {
      stop.ids.push_back(ids.front());
    } else {
      stop.texts.push_back(text);
    }
  }
  if (!stop.texts.empty() && config.generate.beams.beams > 1) {
    throw UserError(ExitCode::deck,
                    fmt::format("{}: '{}' is not a special token: with beams only tokens can end a text",
                                config.provenance.where("generate.stop"), stop.texts.front()));
  }
  return stop;
}

/// Reads every prompt, so that errors come before the work, and returns how many are truncated. Collective.
int64_t check_prompts(const PromptFiles& prompts, Communicator& communicator) {
  const SectionScope section(Section::data);
  std::array<int64_t, 1> truncated = {0};
  run_cancellable(communicator, "while it was reading prompts", [&](const Pause& pause) {
    for (int64_t number = communicator.rank(); number < prompts.size(); number += communicator.size()) {
      truncated[0] += prompts.read(number).dropped > 0 ? 1 : 0;
      report_progress();
      pause();
    }
  });
  communicator.sum(truncated);
  return truncated[0];
}

/// Refuses a file of results whose last row is not of these prompts.
void check_earlier_rows(const GenerationOutput& output, const PromptFiles& prompts, const Config& config) {
  if (output.rows() == 0) return;
  const int64_t last = (output.rows() - 1) / config.generate.samples;
  bool same = last < prompts.size();
  if (same) {
    const auto row = nlohmann::ordered_json::parse(output.last_row(), nullptr, false);
    const nlohmann::ordered_json asked = prompts.read(last).row;
    same = row.is_object() && (config.generate.samples == 1 ||
                               row.value("sample", int64_t{-1}) == (output.rows() - 1) % config.generate.samples);
    for (const auto& [key, value] : asked.items()) {
      same = same && row.contains(key) && (is_result_column(key) || row[key] == value);
    }
  }
  if (same) return;
  throw UserError(
      ExitCode::cannot_create,
      fmt::format(
          "{}: its last row is not that of prompt {}: the file or the prompts have changed since. Choose another "
          "run.name, or give run.overwrite=true to begin again",
          config.generate.path(config.run.directory()), last + 1));
}

struct OpenedRun {
  std::optional<RunDirectory> directory;
  std::optional<GenerationOutput> output;  ///< on rank 0
};

/// Starts or resumes the run directory and the file of results. Collective.
void open_output(OpenedRun& run, const Config& config, const PromptFiles& prompts, Communicator& communicator) {
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() != 0) return;
    namespace fs = std::filesystem;
    std::error_code ignored;
    const std::string path = config.generate.path(config.run.directory());
    const bool begun = fs::exists(run.directory->path() + "/begun.json", ignored);
    const bool resumes = begun && !config.run.overwrite && fs::exists(path, ignored);
    for (const std::string& name : prompts.names()) {
      if (!fs::equivalent(path, name, ignored)) continue;
      throw UserError(ExitCode::cannot_create,
                      fmt::format("{}: generate.output is one of generate.prompts; choose another name", path));
    }
    if (!resumes && !config.run.overwrite) GenerationOutput::require_new(path);  // before anything says that it is ours
    if (resumes) {
      run.directory->resume(write_deck(config));
    } else {
      run.directory->start(write_deck(config));
    }
    run.output.emplace(path, resumes, config.run.overwrite);
    check_earlier_rows(*run.output, prompts, config);
    run.output->start();
  });
}

void print_opening(RunLog& log, const Job& job, const GenerationTask& task, const PromptFiles& prompts,
                   int64_t truncated) {
  const Config& config = job.config;
  print_machine(log, "", job.runtime);
  print_model(log, config.model, config.precision, task.parameter_count());
  print_quantization(log, config.storage(config.source.quantization));
  print_memory(log, task.plan(), job.runtime.communicator());
  const GenerateConfig& generate = config.generate;
  log.print(fmt::format("prompts    {}, {} of at most {} tokens each, {} side by side on a rank",
                        count_text(prompts.size()),
                        generate.samples == 1 ? "a continuation" : count_text(generate.samples) + " continuations",
                        count_text(generate.max_new_tokens), count_text(config.batch.micro)));
  log.print(fmt::format("results    {}", generate.path(config.run.directory())));
  if (truncated > 0) {
    log.warn(fmt::format("{} of {} prompts are longer than {} tokens and lost their beginning (generate.overflow)",
                         count_text(truncated), count_text(prompts.size()), count_text(task.rules().max_tokens)));
  }
  print_warnings(log, config.notes, job.runtime);
}

void print_report(RunLog& log, const GenerationReport& report, double seconds, int64_t earlier) {
  log.print("");
  if (earlier > 0) log.print(fmt::format("{} rows were there already", count_text(earlier)));
  log.print(fmt::format("{} rows, {} tokens, {:.3g} s ({} tokens/s); {} continuations reached max_new_tokens",
                        count_text(report.rows), count_text(report.tokens), seconds,
                        count_text(static_cast<int64_t>(static_cast<double>(report.tokens) / std::max(seconds, 1e-9))),
                        count_text(report.at_limit)));
}

class GenerationPlan : public RankPlan {
 public:
  explicit GenerationPlan(std::unique_ptr<GenerationTask> task) : task_(std::move(task)) {}
  const Arena& arena() const override { return task_->plan(); }
  int64_t parameters() const override { return task_->parameter_count(); }

 private:
  std::unique_ptr<GenerationTask> task_;
};

/// Generates in the run's folder, which is open. Collective.
void generate(Job& job, OpenedRun& run, const Dataset& data) {
  Config& config = job.config;
  Communicator& communicator = job.runtime.communicator();
  const bool root = communicator.rank() == 0;
  std::unique_ptr<GenerationTask> task;
  throw_on_all_ranks(communicator, [&] {
    task = make_generation(config, data, {communicator.rank(), communicator.size(), 1});
  });
  check_plan(task->plan(), memory_limits(config), communicator);
  const PromptFiles prompts(config.generate.prompts, task->rules(), *data.tokenizer, config.chat, data.chat.files,
                            communicator);
  const int64_t truncated = check_prompts(prompts, communicator);
  StopRules stop;
  throw_on_all_ranks(communicator, [&] { stop = find_stops(config, data); });
  open_output(run, config, prompts, communicator);
  RunLogOptions options = log_options(config, root ? &*run.directory : nullptr, task->plan(), communicator);
  options.sinks.clear();
  std::optional<RunLog> log;
  throw_on_all_ranks(communicator, [&] { log.emplace(options); });
  print_opening(*log, job, *task, prompts, truncated);
  task->start(job.runtime, *log);
  const int64_t earlier = root ? run.output->rows() : 0;
  const double begin = now();
  const GenerationReport report = task->run(job.runtime, *log, prompts, root ? &*run.output : nullptr, std::move(stop));
  print_report(*log, report, now() - begin, earlier);
  throw_on_all_ranks(communicator, [&] {
    if (!root) return;
    run.output->sync();
    run.directory->mark_finished(0);
  });
}

}  // namespace

Dataset load_prompt_tokenizer(Config& config, Communicator& communicator, const ProgressReport&) {
  const SectionScope section(Section::data);
  Dataset data;
  std::string text;
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() != 0) return;
    const DataConfig& from = config.data;
    std::shared_ptr<const Tokenizer> tokenizer = from.has_tokenizer_files()
                                                     ? tokenizer_of(from, from.tokenizer_path(), false)
                                                     : std::shared_ptr<const Tokenizer>(make_byte_tokenizer());
    config.add_note(tokens_without_row(*tokenizer, from.embedding_rows));
    text = tokenizer->serialized();
  });
  communicator.broadcast(text);
  data.tokenizer = make_tokenizer_from(text);
  data.vocabulary_size = data.tokenizer->vocabulary_size();
  data.chat = load_chat(config, communicator);
  return data;
}

std::unique_ptr<RankPlan> plan_generation(const Config& config, const Dataset& data, const RankPosition& position) {
  return std::make_unique<GenerationPlan>(make_generation(config, data, position));
}

int run_generation(Job& job) {
  Config& config = job.config;
  Communicator& communicator = job.runtime.communicator();
  resolve_precision(config, agreed_fast_bf16(communicator));
  OpenedRun run;
  if (open_directory(run.directory, config.run, comparison_with(config), communicator)) return 0;
  const StopMonitor stop_monitor(config.run, config.checkpoint, communicator.rank() == 0);
  config.add_note(watch_ranks(config.watchdog, config.run.directory(), job.runtime));
  job.examine(true);
  const Dataset data = load_prompt_tokenizer(config, communicator, {});
  generate(job, run, data);
  return 0;
}

}  // namespace llmtrain
