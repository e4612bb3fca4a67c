#include "tasks/evaluation_task.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <vector>

#include "core/activity.hpp"
#include "core/number_text.hpp"
#include "kernels/workspace.hpp"
#include "methods/roles.hpp"
#include "models/lora.hpp"
#include "models/models.hpp"
#include "parallel/job/cancellable_work.hpp"
#include "tasks/job_opening.hpp"
#include "tasks/opening_lines.hpp"
#include "tasks/parts.hpp"
#include "tasks/tasks.hpp"
#include "train/config/mesh_checks.hpp"

namespace llmtrain {

namespace {

Interrupted stop_of(Communicator& communicator) {
  return [&communicator] {
    throw_if_stopping(communicator, "while it was evaluating");
    return false;
  };
}

DataStream evaluation_stream(const Config& config, const Dataset& data) {
  const SampleRules rules = data.has_conversations() ? data.rules.for_conversations() : data.rules;
  return {data.validation != nullptr ? data.validation : data.train, rules, config.batch, /*seed=*/0, false};
}

}  // namespace

double EvaluationReport::perplexity() const { return std::exp(loss); }

double EvaluationReport::token_accuracy() const { return static_cast<double>(correct) / static_cast<double>(tokens); }

double EvaluationReport::bits_per_byte() const {
  if (bytes == 0) return 0;
  return loss * static_cast<double>(tokens) / std::numbers::ln2 / static_cast<double>(bytes);
}

int64_t scored_bytes(const Tokenizer& tokenizer, const HostBatch& batch) {
  int64_t bytes = 0;
  // consecutive scored tokens after the preceding token, since some decoders drop a first space
  std::vector<int32_t> run;
  const auto close = [&] {
    if (run.empty()) return;
    const size_t before = tokenizer.decode(std::span(run).first(1)).size();
    bytes += static_cast<int64_t>(tokenizer.decode(run).size() - before);
    run.clear();
  };
  for (size_t i = 0; i < batch.ids.size(); ++i) {
    if (!run.empty() && batch.ids[i] != run.back()) close();
    if (batch.targets[i] == ignore_target) {
      close();
      continue;
    }
    if (run.empty()) run.push_back(batch.ids[i]);
    run.push_back(batch.targets[i]);
  }
  close();
  return bytes;
}

EvaluationTask::EvaluationTask(EvaluationParts parts, int ranks) : parts_(std::move(parts)) {
  if (parts_.data) require_trained_tokens(*parts_.data, parts_.steps);
  const bool scores = parts_.policy.shape.config.scores();
  objective_ = scores ? make_reward({}) : make_cross_entropy();
  const int64_t rows = parts_.policy.passes.value().max_rows;
  int64_t segments = parts_.data ? parts_.data->max_segments() : 0;
  if (!parts_.scores.choices.empty()) segments = std::max(segments, segments_for(rows));
  const DType compute = parts_.policy.passes->compute;
  models_.add(std::move(parts_.policy));
  models_.plan(arena_);
  batch_.plan(arena_, rows, segments);
  arena_.add(statistics_.logp, MemoryCategory::activations, "statistics.logp", DType::f32, {rows});
  objective_->plan(arena_, rows, segments);
  if (!scores) arena_.add(statistics_.argmax, MemoryCategory::activations, "statistics.argmax", DType::i32, {rows});
  arena_.add(sums_, MemoryCategory::activations, "statistics.sums", DType::i64,
             {std::ssize(objective_->metrics()), ExactSum::integer_count});
  parts_.scores.answers.plan(models_.at(Role::policy), arena_, compute, ranks);
}

void EvaluationTask::score_data(EvaluationReport& report, Context& ctx, const Mesh& mesh) {
  RoleModel& policy = models_.at(Role::policy);
  int64_t bytes[] = {0};
  const bool has_text = !policy.shape().config.scores();
  const auto count = [&](const HostBatch& batch) {
    if (parts_.tokenizer != nullptr && has_text) bytes[0] += scored_bytes(*parts_.tokenizer, batch);
  };
  auto result = evaluate(policy.model(), ctx, *objective_, *parts_.data, parts_.steps, {batch_, statistics_, sums_},
                         mesh, stop_of(mesh.job()), count)
                    .value();
  mesh.job().sum(bytes);
  report.loss = result.loss;
  report.tokens = result.tokens;
  report.correct = result.correct;
  report.bytes = bytes[0];
  report.metrics = std::move(result.metrics);
}

EvaluationReport EvaluationTask::run(Runtime& runtime, const Mesh& mesh, RunLog& log) {
  Communicator& communicator = runtime.communicator();
  Stream& stream = runtime.stream();
  const DeviceBuffer memory(arena_.bytes());
  arena_.commit(memory.data());
  const WorkspaceScope workspace(arena_.workspace());
  models_.start(mesh, stream);
  RoleModel& policy = models_.at(Role::policy);
  const LoadedWeights loaded = policy.load(communicator, stream);
  log.print("weights    " + loaded.text);
  for (const std::string& warning : loaded.warnings) log.warn(warning);
  SharedRows rows(mesh, {}, {});
  Context ctx{policy.params(), arena_, stream};
  ctx.rows = &rows;
  EvaluationReport report;
  if (parts_.data) score_data(report, ctx, mesh);
  const LikelihoodBuffers buffers{batch_, statistics_.logp, statistics_.argmax};
  report.scores = parts_.scores.run(policy, arena_, runtime, rows, buffers, stop_of(communicator)).value();
  return report;
}

RoleSpec untrained_policy(const Config& config, const RankPosition& position, int64_t rows) {
  const std::string& checkpoint = config.source.checkpoint;
  const int64_t tokens = checkpoint.empty() ? config.model.vocab_size : config.source.tokens;
  std::optional<LoraConfig> lora = config.source.lora;
  if (!config.lora.path.empty()) lora = config.lora;
  DecoderShape shape = decoder_shape(config.model, tokens);
  shape.new_head = config.source.new_head;
  if (lora) adapt(shape, *lora);
  quantize(shape, config.storage(config.source.quantization));
  RoleSpec policy;
  policy.shape = std::move(shape);
  RankPosition alone = position;
  alone.node_size = 1;  // the ranks share no memory
  alone.ranks_per_node = 0;
  policy.store = store_options(config, alone, config.model.experts.count);
  policy.passes = PassPlan{policy.store.compute, rows, false};
  policy.weights.folder = config.model.path;
  policy.weights.checkpoint = checkpoint;
  policy.lora = std::move(lora);
  return policy;
}

namespace {

/// The deck must be resolved, with a model.path.
std::unique_ptr<EvaluationTask> make_evaluation(const Config& config, const Dataset& data,
                                                const RankPosition& position) {
  EvaluationParts parts;
  int64_t rows = 0;
  if (data.train != nullptr) {
    parts.data = evaluation_stream(config, data);
    parts.steps = first_steps(config.evaluation, *parts.data);
    rows = parts.data->max_rows();
  }
  rows = std::max(rows, rows_of_scores(config, data));
  if (!data.tasks.empty()) rows = std::max(rows, config.batch.micro * config.batch.sequence_length);
  parts.policy = untrained_policy(config, position, rows);
  parts.tokenizer = data.tokenizer;
  parts.scores = make_scores(config, data, parts.data ? &*parts.data : nullptr, parts.steps);
  return std::make_unique<EvaluationTask>(std::move(parts), position.size);
}

void print_data(RunLog& log, const Config& config, const EvaluationTask& task, const Dataset& data) {
  const DataStream& stream = *task.data();
  const SampleCounts& counts = stream.counts();
  const int64_t stride = config.evaluation.stride;
  log.print(fmt::format("data       {} samples of at most {} tokens{}", count_text(counts.samples),
                        count_text(config.batch.sequence_length),
                        stride > 0 ? fmt::format(", one every {} tokens", count_text(stride)) : std::string()));
  print_rows(log, data);
  print_left_out(log, counts);
  if (task.steps() < stream.steps_per_epoch()) {
    log.print(
        fmt::format("           the first {} samples are scored", count_text(task.steps() * config.batch.global)));
  }
}

void print_opening(RunLog& log, const Config& config, Runtime& runtime, EvaluationTask& task, const Dataset& data) {
  print_machine(log, "", runtime);
  print_model(log, config.model, config.precision, task.parameter_count());
  print_quantization(log, config.storage(config.source.quantization));
  print_length(log, config);
  print_memory(log, task.plan(), runtime.communicator());
  if (task.data()) print_data(log, config, task, data);
  for (const std::string& line : task.scores().choices.descriptions()) log.print(line);
  if (const AnswerEvaluation& answers = task.scores().answers; !answers.empty()) {
    log.print(fmt::format("answers    to {} prompts", count_text(answers.rows())));
  }
  log.print(fmt::format("results    {}", config.run.directory()));
  print_warnings(log, config.notes, runtime);
}

void put_data(nlohmann::ordered_json& j, const EvaluationReport& report, int64_t sequence_length, int64_t stride) {
  j["loss"] = report.loss;
  if (!report.metrics.empty()) {
    for (const NamedValue& metric : report.metrics) j[metric.name] = metric.value;
    j["pairs"] = report.tokens;
    j["sequence_length"] = sequence_length;
    return;
  }
  j["perplexity"] = report.perplexity();
  if (report.bytes > 0) j["bits_per_byte"] = report.bits_per_byte();
  j["token_accuracy"] = report.token_accuracy();
  j["tokens"] = report.tokens;
  if (report.bytes > 0) j["bytes"] = report.bytes;
  j["sequence_length"] = sequence_length;
  j["stride"] = stride;
}

std::string report_json(const EvaluationReport& report, const Config& config, const EvaluationScores& scores) {
  nlohmann::ordered_json j = nlohmann::ordered_json::object();
  j["model"] = config.model.path;
  if (!config.source.checkpoint.empty()) j["checkpoint"] = config.source.checkpoint;
  if (!config.lora.path.empty()) j["adapter"] = config.lora.path;
  if (report.tokens > 0) put_data(j, report, config.batch.sequence_length, config.evaluation.stride);
  if (!scores.choices.empty()) j["tasks"] = nlohmann::ordered_json::parse(scores.choices.report());
  if (!scores.answers.empty()) {
    for (const NamedValue& score : std::span(report.scores).subspan(scores.choices.names().size())) {
      j["metrics"][score.name] = score.value;
    }
    for (const auto& [name, signature] : scores.answers.signatures()) j["signatures"][name] = signature;
    j["answers"] = scores.answers.rows();
  }
  return j.dump(2) + "\n";
}

void write_results(const RunDirectory& directory, const EvaluationReport& report, const Config& config,
                   const EvaluationScores& scores) {
  directory.write_file("evaluation.json", report_json(report, config, scores));
  if (config.evaluation.log_samples) scores.write_rows(directory.path());
}

void print_scores(RunLog& log, const EvaluationReport& report) {
  if (report.scores.empty()) return;
  log.print("");
  log.print("scores");
  for (const NamedValue& score : report.scores) log.print(fmt::format("  {:<30} {:.6f}", score.name, score.value));
}

void print_report(RunLog& log, const EvaluationReport& report) {
  print_scores(log, report);
  if (report.tokens == 0) return;
  log.print("");
  if (!report.metrics.empty()) {
    log.print(fmt::format("{} pairs scored", count_text(report.tokens)));
    log.print(fmt::format("  loss                {:.6f} nats per pair", report.loss));
    for (const NamedValue& metric : report.metrics)
      log.print(fmt::format("  {:<19} {:.6f}", metric.name, metric.value));
    return;
  }
  log.print(fmt::format("{} tokens scored", count_text(report.tokens)));
  log.print(fmt::format("  loss                {:.6f} nats per token", report.loss));
  log.print(fmt::format("  perplexity          {:.6g}", report.perplexity()));
  log.print(report.bytes > 0 ? fmt::format("  bits per byte       {:.6f} over {} bytes", report.bits_per_byte(),
                                           count_text(report.bytes))
                             : "  bits per byte       unknown: token ids without a tokenizer");
  log.print(fmt::format("  token accuracy      {:.2f} %", 100 * report.token_accuracy()));
}

/// Runs the task and logs its result.
EvaluationReport run_timed(EvaluationTask& task, Runtime& runtime, const Mesh& mesh, RunLog& log) {
  const auto begin = std::chrono::steady_clock::now();
  EvaluationReport report;
  {
    const SectionScope section(Section::evaluation);
    report = task.run(runtime, mesh, log);
  }
  EvaluationRecord record;
  record.loss = report.loss;
  record.tokens = report.tokens;
  record.metrics = report.metrics;
  record.scores = report.scores;
  record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  log.evaluation(record);
  return report;
}

}  // namespace

std::unique_ptr<RankPlan> plan_evaluation(const Config& config, const Dataset& data, const RankPosition& position) {
  return std::make_unique<TaskPlan<EvaluationTask>>(make_evaluation(config, data, position));
}

int run_evaluation(Job& job) {
  Runtime& runtime = job.runtime;
  Communicator& communicator = runtime.communicator();
  decide_compute(job.deck, job.facts, agreed_fast_bf16(communicator));
  JobOpening opening(job);
  if (opening.is_finished()) return 0;
  job.examine(true);
  const Dataset data =
      load_data(job.deck, job.facts, communicator, [&](const std::string& text) { opening.print(text); });
  const Config config = job.config();
  const Mesh mesh(communicator, mesh_of(config, communicator.size()));
  std::unique_ptr<EvaluationTask> task;
  throw_on_all_ranks(communicator,
                     [&] { task = make_evaluation(config, data, rank_position(communicator, config.parallel)); });
  check_plan(task->plan(), memory_limits(config), communicator);
  task->scores().answers.open(communicator);
  opening.start_directory();
  if (!task->scores().answers.empty()) {
    task->scores().answers.set_stop_ids(find_stop_tokens(config, data, communicator));
  }
  RunLogOptions options = opening.log_options(task->plan());
  for (const MetricSpec& metric : task->metrics().subspan(1)) options.run.metrics.emplace_back(metric.name);
  options.run.scores = task->scores().names();
  RunLog& log = opening.open_log(options);
  print_opening(log, config, runtime, *task, data);
  print_signatures(log, task->scores().answers);

  const EvaluationReport report = run_timed(*task, runtime, mesh, log);
  print_report(log, report);
  if (report.tokens > 0 && !std::isfinite(report.loss)) {
    throw UserError(ExitCode::diverged, config.model.path +
                                            ": the loss is not finite: the weights, or products of them in this "
                                            "precision.compute, overflow; try precision.compute = fp32");
  }
  opening.on_root([&](const RunDirectory& directory) { write_results(directory, report, config, task->scores()); });
  log.finish("finished");
  opening.mark_finished();
  return 0;
}

}  // namespace llmtrain
