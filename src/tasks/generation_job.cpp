// The job of run.task = generate around its GenerationTask: tokenizer, prompts, run directory, console.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <utility>

#include "checkpoint/manifest.hpp"
#include "checkpoint/shard_file.hpp"
#include "core/activity.hpp"
#include "core/clock.hpp"
#include "core/files/content_hash.hpp"
#include "core/files/file_handle.hpp"
#include "core/files/json_reader.hpp"
#include "core/number_text.hpp"
#include "data/tokenize/open_tokenizer.hpp"
#include "hf/adapters/adapter_config.hpp"
#include "methods/roles.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "parallel/local_communicator.hpp"
#include "tasks/generation_task.hpp"
#include "tasks/job_opening.hpp"
#include "tasks/opening_lines.hpp"
#include "tasks/parts.hpp"
#include "tasks/tasks.hpp"
#include "text/tokens_beyond_embedding.hpp"
#include "train/config/mesh_checks.hpp"
#include "train/config/sequence_length.hpp"
#include "train/run/resume.hpp"

namespace llmtrain {

namespace {

/// The deck must be resolved, with a model.path.
std::unique_ptr<GenerationTask> make_generation(const Config& config, const Dataset& data,
                                                const RankPosition& position) {
  return std::make_unique<GenerationTask>(config, untrained_policy(config, position, 0), data.tokenizer);
}

/// The tokens that end a text of the model, and the deck's stop tokens and texts. Collective.
StopRules find_stops(const Config& config, const Dataset& data, Communicator& communicator) {
  StopRules stop;
  const Tokenizer& tokenizer = *data.tokenizer;
  stop.ids = find_stop_tokens(config, data, communicator);
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

/// Decides batch.sequence_length by the longest prompt, where the deck gives none. Collective.
void choose_sequence_length(const Config& config, RunFacts& facts, const Dataset& data, Communicator& communicator) {
  if (!chooses_sequence_length(config)) return;
  const PromptFiles prompts(config.generate.prompts, prompt_rules(config), *data.tokenizer, config.chat,
                            data.chat.files, communicator);
  std::array<int64_t, 1> longest = {};
  run_cancellable(communicator, "while it was reading prompts", [&](const Pause& pause) {
    for (int64_t number = communicator.rank(); number < prompts.size(); number += communicator.size()) {
      longest[0] = std::max(longest[0], std::ssize(prompts.read(number).ids));
      report_progress();
      pause();
    }
  });
  communicator.maximum(longest);
  facts.sequence_length = fit_sequence_length(config, longest[0]);
}

struct CheckedPrompts {
  int64_t truncated = 0;
  std::string hash;  ///< of all rows and tokens, in order
};

/// Reads every prompt, so that errors come before the work. Collective.
CheckedPrompts check_prompts(const PromptFiles& prompts, Communicator& communicator) {
  const SectionScope section(Section::data);
  std::array<int64_t, 3> sums = {};  // truncated prompts, halves of hashes
  run_cancellable(communicator, "while it was reading prompts", [&](const Pause& pause) {
    for (int64_t number = communicator.rank(); number < prompts.size(); number += communicator.size()) {
      const Prompt prompt = prompts.read(number);
      const std::string facts = fmt::format("{} {} {}", number, fmt::join(prompt.ids, ","), json_text(prompt.row));
      const uint64_t hash = digest_of(facts.data(), facts.size()).low;
      sums[0] += prompt.dropped > 0 ? 1 : 0;
      sums[1] += static_cast<int64_t>(hash >> 32U);
      sums[2] += static_cast<int64_t>(hash & 0xFFFFFFFFU);
      report_progress();
      pause();
    }
  });
  communicator.sum(sums);
  return {sums[0], short_hash(fmt::format("{} {} {}", prompts.size(), sums[1], sums[2]))};
}

/// Hash of what the rows depend on beside the deck and the prompts.
std::string hash_model(const Config& config, const Dataset& data, const StopRules& stop) {
  const std::string& checkpoint = config.source.checkpoint;
  const std::string weights =
      checkpoint.empty() ? content_of_model(config.model.path).hash
                         : FileHandle::open_to_read(checkpoint + "/" + manifest_name).read_text(max_manifest_bytes);
  const std::string& lora = config.lora.path;
  const std::string adapter =
      lora.empty() ? "" : hex(digest_file(FileHandle::open_to_read(lora + "/" + adapter_weights_name), "").hash);
  return short_hash(fmt::format("{}\n{}\n{}\n{}\n{}", weights, adapter, data.tokenizer->serialized(),
                                serialize(data.chat.files), fmt::join(stop.ids, ",")));
}

/// Starts or resumes the run directory and, on rank 0, the file of results. Collective.
void open_output(std::optional<GenerationOutput>& output, JobOpening& opening, const Config& config,
                 const PromptFiles& prompts, const std::function<GenerationSources()>& sources) {
  opening.on_root([&](const RunDirectory& directory) {
    namespace fs = std::filesystem;
    std::error_code ignored;
    const std::string path = config.generate.path(config.run.directory());
    const bool begun = fs::exists(directory.path() + "/begun.json", ignored);
    const bool resumes = begun && !config.run.overwrite && fs::exists(path, ignored);
    for (const std::string& name : prompts.names()) {
      if (!fs::equivalent(path, name, ignored)) continue;
      throw UserError(ExitCode::cannot_create,
                      fmt::format("{}: generate.output is one of generate.prompts; choose another name", path));
    }
    if (!resumes && !config.run.overwrite) GenerationOutput::require_new(path);  // before anything says that it is ours
    const GenerationSources from = sources();
    if (resumes) {
      directory.resume(write_deck(config));
    } else {
      directory.start(write_deck(config));
    }
    output.emplace(path, directory.path() + "/" + generation_hashes_name, from, resumes, config.run.overwrite);
    output->start();
  });
}

void print_opening(RunLog& log, const Config& config, Runtime& runtime, const GenerationTask& task,
                   const PromptFiles& prompts, int64_t truncated) {
  print_machine(log, "", runtime);
  print_model(log, config.model, config.precision, task.parameter_count());
  print_quantization(log, config.storage(config.source.quantization));
  print_length(log, config);
  print_memory(log, task.plan(), runtime.communicator());
  const GenerateConfig& generate = config.generate;
  log.print(fmt::format("prompts    {}, {} of at most {} tokens each, {} side by side on a rank",
                        count_text(prompts.size()),
                        generate.samples == 1 ? "a continuation" : count_text(generate.samples) + " continuations",
                        count_text(generate.max_new_tokens), count_text(config.batch.micro)));
  log.print(fmt::format("results    {}", generate.path(config.run.directory())));
  if (truncated > 0) {
    log.warn(fmt::format("{} of {} prompts are longer than {} tokens and lost their beginning (generate.overflow)",
                         count_text(truncated), count_text(prompts.size()),
                         count_text(prompt_rules(config).max_tokens)));
  }
  print_warnings(log, config.notes, runtime);
}

void print_report(RunLog& log, const GenerationReport& report, double seconds, int64_t earlier) {
  log.print("");
  if (earlier > 0) log.print(fmt::format("{} already written", counted(earlier, "row")));
  log.print(fmt::format("{}, {}, {:.3g} s ({} tokens/s); {} reached max_new_tokens", counted(report.rows, "row"),
                        counted(report.tokens, "token"), seconds,
                        count_text(static_cast<int64_t>(static_cast<double>(report.tokens) / std::max(seconds, 1e-9))),
                        counted(report.at_limit, "continuation")));
}

/// Generates in the run's folder, which is open. Collective.
void generate(const Config& config, Runtime& runtime, JobOpening& opening, const Dataset& data) {
  Communicator& communicator = runtime.communicator();
  std::unique_ptr<GenerationTask> task;
  const Mesh mesh(communicator, mesh_of(config, communicator.size()));
  throw_on_all_ranks(communicator,
                     [&] { task = make_generation(config, data, rank_position(communicator, config.parallel)); });
  check_plan(task->plan(), memory_limits(config), communicator);
  const PromptFiles prompts(config.generate.prompts, prompt_rules(config), *data.tokenizer, config.chat,
                            data.chat.files, communicator);
  const CheckedPrompts checked = check_prompts(prompts, communicator);
  StopRules stop = find_stops(config, data, communicator);
  std::optional<GenerationOutput> output;
  open_output(output, opening, config, prompts, [&] {
    return GenerationSources{checked.hash, hash_model(config, data, stop)};
  });
  RunLogOptions options = opening.log_options(task->plan());
  options.sinks.clear();
  RunLog& log = opening.open_log(options);
  print_opening(log, config, runtime, *task, prompts, checked.truncated);
  task->start(runtime, mesh, log);
  const int64_t earlier = output ? output->rows() : 0;
  const double begin = now();
  const GenerationReport report = task->run(runtime, mesh, log, prompts, output ? &*output : nullptr, std::move(stop));
  print_report(log, report, now() - begin, earlier);
  opening.on_root([&](const RunDirectory&) { output->sync(); });
  opening.mark_finished();
}

}  // namespace

Dataset load_prompt_tokenizer(const Config& deck, RunFacts& facts, Communicator& communicator,
                              const ProgressReport& /*report*/) {
  const SectionScope section(Section::data);
  Dataset data;
  std::string text;
  data.rules = sample_rules(deck);
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() != 0) return;
    const SampleRules& from = data.rules;
    std::shared_ptr<const Tokenizer> tokenizer = from.has_tokenizer_files()
                                                     ? tokenizer_of(from, from.tokenizer_path(), false)
                                                     : std::shared_ptr<const Tokenizer>(make_byte_tokenizer());
    facts.add_note(tokens_without_row(*tokenizer, from.embedding_rows));
    text = tokenizer->serialized();
  });
  communicator.broadcast(text);
  data.tokenizer = make_tokenizer_from(text);
  data.vocabulary_size = data.tokenizer->vocabulary_size();
  data.chat = load_chat(deck, communicator);
  choose_sequence_length(deck, facts, data, communicator);
  return data;
}

void check_generation(const Config& deck, RunFacts& facts) {
  const auto alone = make_local_communicator();
  const Dataset data = load_prompt_tokenizer(deck, facts, *alone, {});
  const Config config = with_facts(deck, facts);
  find_stops(config, data, *alone);
  const auto task = make_generation(config, data, {0, 1, 1});
  const PromptFiles prompts(config.generate.prompts, prompt_rules(config), *data.tokenizer, config.chat,
                            data.chat.files, *alone);
  int64_t truncated = 0;
  for (int64_t number = 0; number < prompts.size(); ++number) truncated += prompts.read(number).dropped > 0 ? 1 : 0;
  if (truncated == 0) return;
  facts.add_note(
      fmt::format("generate.overflow: {} longer than batch.sequence_length allows; the beginning will be cut off",
                  counted(truncated, "prompt")));
}

std::unique_ptr<RankPlan> plan_generation(const Config& config, const Dataset& data, const RankPosition& position) {
  return std::make_unique<TaskPlan<GenerationTask>>(make_generation(config, data, position));
}

int run_generation(Job& job) {
  Communicator& communicator = job.runtime.communicator();
  decide_compute(job.deck, job.facts, agreed_fast_bf16(communicator));
  JobOpening opening(job);
  if (opening.is_finished()) return 0;
  job.examine(true);
  const Dataset data = load_prompt_tokenizer(job.deck, job.facts, communicator, {});
  generate(job.config(), job.runtime, opening, data);
  return 0;
}

}  // namespace llmtrain
