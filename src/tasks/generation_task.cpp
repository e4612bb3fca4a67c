#include "tasks/generation_task.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "core/activity.hpp"
#include "core/clock.hpp"
#include "core/files/json_reader.hpp"
#include "core/number_text.hpp"
#include "core/stop_request.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "parallel/job/launcher.hpp"

namespace llmtrain {

namespace {

constexpr int64_t texts_of_round = 4096;         ///< per rank, at least a prompt's; their ids and rows are in memory
constexpr int64_t passes_between_meetings = 16;  ///< after which ranks hand over rows and agree whether to stop
constexpr int64_t prompt_tokens_of_pass = 512;
constexpr double seconds_between_lines = 10;  ///< of progress

}  // namespace

struct GenerationTask::Round {
  int64_t first, end;                           ///< numbers of the prompts
  std::map<size_t, Prompt> prompts = {};        ///< that this rank continues, by their places in the round
  std::map<size_t, StopTextStream> texts = {};  ///< of running continuations, where texts can end them
};

GenerationTask::GenerationTask(const Config& config, RoleSpec policy, std::shared_ptr<const Tokenizer> tokenizer)
    : config_(config), tokenizer_(std::move(tokenizer)) {
  const DType compute = policy.store.compute;
  GeneratorCapacity room;
  room.vocabulary_rows = policy.shape.config.vocab_size;
  room.sequences = config.batch.micro;
  room.context = config.batch.sequence_length;
  room.prompt_tokens = prompt_tokens_of_pass;
  room.policy = config.generate.cache;
  room.kv_heads = policy.shape.config.n_kv_heads;
  room.graphs = config.parallel.cuda_graphs;
  policy.passes.reset();
  RoleModel& model = models_.add(std::move(policy));
  generator_.emplace(model.actor(), room);
  models_.plan(arena_);
  model.actor().plan(arena_, {compute, generator_->rows(), false, Recompute::none, room.context});
  generator_->plan(arena_, compute);
}

PromptRules prompt_rules(const Config& config) {
  PromptRules rules;
  rules.columns = config.data.columns;
  rules.row_limit = config.data.row_limit;
  rules.max_tokens = config.batch.sequence_length - config.generate.max_new_tokens;
  rules.truncates = config.generate.overflow == GenerateConfig::Overflow::truncate_left;
  rules.vocabulary = config.source.checkpoint.empty() ? config.model.vocab_size : config.source.tokens;
  return rules;
}

void GenerationTask::start(Runtime& runtime, const Mesh& mesh, RunLog& log) {
  memory_.emplace(arena_.bytes());
  arena_.commit(memory_->data());
  workspace_.emplace(arena_.workspace());
  models_.start(mesh, runtime.stream());
  const LoadedWeights loaded = models_.at(Role::policy).load(runtime.communicator(), runtime.stream());
  log.print("weights    " + loaded.text);
  for (const std::string& warning : loaded.warnings) log.warn(warning);
}

GenerationRequest GenerationTask::request(const Round& round, const Job& job) const {
  const GenerateConfig& generate = config_.generate;
  GenerationRequest request;
  request.prompts.resize(static_cast<size_t>(round.end - round.first));
  for (int64_t number = round.first; number < round.end; ++number) request.numbers.push_back(number);
  request.samples = generate.samples;
  request.sampling = generate.sampling;
  request.beams = generate.beams;
  request.max_new_tokens = generate.max_new_tokens;
  request.eos = stop_.ids;
  request.vocabulary = models_.at(Role::policy).shape().tokens;
  request.seed = static_cast<uint64_t>(config_.run.seed);
  request.gives_logp = generate.logprobs;
  request.threads = worker_threads(job.runtime.communicator());
  if (job.mesh.passes().size() > 1) request.ranks = &job.mesh.passes();
  return request;
}

/// The row of continuation `c` of the round, with its line end.
std::string GenerationTask::row_of(const Round& round, size_t c, const Continuation& continuation) const {
  const auto samples = static_cast<size_t>(config_.generate.samples);
  const Prompt& prompt = round.prompts.at(c / samples);
  nlohmann::ordered_json row = prompt.row;
  if (samples > 1) row["sample"] = c % samples;
  if (const auto running = round.texts.find(c); running != round.texts.end()) {
    row["text"] = std::string(running->second.text());
  } else {
    StopTextStream text(*tokenizer_, prompt.ids, stop_.texts);
    for (const int32_t token : continuation.tokens) text.add(token);
    row["text"] = std::string(text.text());
  }
  row["end"] = name_of(continuation.end);
  if (config_.generate.beams.beams > 1) row["score"] = continuation.score;
  if (config_.generate.ids) {
    std::vector<int32_t> ids = continuation.tokens;
    if (continuation.end == GenerationEnd::eos) ids.push_back(continuation.eos);
    row["ids"] = std::move(ids);
  }
  if (config_.generate.logprobs) row["logprobs"] = continuation.logp;
  return json_text(row) + "\n";
}

void GenerationTask::finish(Round& round, size_t c, const Continuation& continuation) {
  const int64_t samples = config_.generate.samples;
  const auto p = c / static_cast<size_t>(samples), sample = c % static_cast<size_t>(samples);
  const int64_t number = (round.first + static_cast<int64_t>(p)) * samples + static_cast<int64_t>(sample);
  if (number >= earlier_) {
    outbox_.put(std::vector<int64_t>{number});
    outbox_.put(row_of(round, c, continuation));
    ++report_.rows;
    report_.tokens += std::ssize(continuation.tokens);
    if (continuation.end == GenerationEnd::length) ++report_.at_limit;
  }
}

/// Moves finished rows to rank 0, which writes them. Collective.
void GenerationTask::hand_over(const Job& job) {
  Communicator& communicator = job.runtime.communicator();
  const std::vector<std::string> all = communicator.gather(outbox_.bytes());
  outbox_ = Message();
  throw_on_all_ranks(communicator, [&] {
    if (job.output == nullptr) return;
    for (const std::string& bytes : all) {
      Message received(bytes);
      while (!received.at_end()) {
        std::vector<int64_t> number;
        std::string row;
        received.take(number);
        received.take(row);
        job.output->add(number.at(0), std::move(row));
      }
    }
    job.output->write();
    job.progress.set(job.output->rows());
    if (Progress::is_displayed() || now() - printed_ < seconds_between_lines) return;
    printed_ = now();
    job.log.print(fmt::format("{} of {} rows", count_text(job.output->rows()),
                              count_text(job.prompts.size() * config_.generate.samples)));
  });
}

void GenerationTask::run_round(const Job& job, int64_t first, int64_t end) {
  Communicator& communicator = job.runtime.communicator();
  Round round{first, end};
  GenerationRequest wanted = request(round, job);
  wanted.read = [&](size_t p) {
    const auto known = round.prompts.find(p);
    if (known != round.prompts.end()) return known->second.ids;
    return round.prompts.emplace(p, job.prompts.read(first + static_cast<int64_t>(p))).first->second.ids;
  };
  if (!stop_.texts.empty()) {
    wanted.on_token = [&](size_t c, int32_t token) {
      const auto text = round.texts.try_emplace(
          c, *tokenizer_, round.prompts.at(c / static_cast<size_t>(wanted.samples)).ids, stop_.texts);
      return text.first->second.add(token);
    };
  }
  wanted.on_end = [&](size_t c, const Continuation& continuation) {
    if (job.mesh.tensor_rank() == 0) finish(round, c, continuation);
    round.texts.erase(c);
  };
  int64_t stop = 0;
  wanted.interrupted = [&] {
    if (passes_ > 0) profile_->end_step(communicator);
    report_profile_if_due(job, false);
    profile_->begin_step(passes_, job.runtime.stream());
    if (++passes_ % passes_between_meetings != 0) return false;
    hand_over(job);
    int64_t asked[] = {look_for_stop()};
    communicator.maximum(asked);
    stop = asked[0];
    return stop != 0;
  };
  RoleModel& policy = models_.at(Role::policy);
  throw_on_all_ranks(communicator, [&] { generator_->run(policy.params(), arena_, job.runtime.stream(), wanted); });
  hand_over(job);
  if (stop != 0) cancel_work(stop, "while it was generating");
}

void GenerationTask::report_profile_if_due(const Job& job, bool the_end) {
  if (!profile_->due(the_end)) return;
  profile_->report(job.runtime, compute_dtype(config_.precision.compute), config_.run.directory(), job.log);
}

GenerationReport GenerationTask::run(Runtime& runtime, const Mesh& mesh, RunLog& log, const PromptFiles& prompts,
                                     GenerationOutput* output, StopRules stop) {
  const SectionScope section(Section::sampling);
  Communicator& communicator = runtime.communicator();
  stop_ = std::move(stop);
  earlier_ = output != nullptr ? output->rows() : 0;
  communicator.broadcast(&earlier_, sizeof(earlier_));
  printed_ = now();
  const int64_t of_round = std::max<int64_t>(1, texts_of_round / config_.generate.samples) * mesh.passes().size();
  Progress progress("generating", prompts.size() * config_.generate.samples);
  profile_.emplace(config_.log.profile, std::numeric_limits<int64_t>::max());
  const Job job{runtime, mesh, log, prompts, output, progress};
  for (int64_t first = earlier_ / config_.generate.samples; first < prompts.size(); first += of_round) {
    run_round(job, first, std::min(first + of_round, prompts.size()));
  }
  report_profile_if_due(job, true);
  std::array<int64_t, 3> counts = {report_.rows, report_.tokens, report_.at_limit};
  communicator.sum(counts);
  return {counts[0], counts[1], counts[2]};
}

}  // namespace llmtrain
