// Tasks that train a model.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "core/number_text.hpp"
#include "evaluation/evaluate.hpp"
#include "kernels/attention.hpp"
#include "kernels/matmul.hpp"
#include "methods/method.hpp"
#include "methods/roles.hpp"
#include "parallel/job/runtime.hpp"
#include "params/planned_memory.hpp"
#include "params/reduction/reduction_advice.hpp"
#include "rollout/scoring.hpp"
#include "tasks/estimate/estimate.hpp"
#include "tasks/estimate/memory_limit.hpp"
#include "tasks/job_opening.hpp"
#include "tasks/opening_lines.hpp"
#include "tasks/parts.hpp"
#include "tasks/tasks.hpp"
#include "train/config/load_config.hpp"
#include "train/config/mesh_checks.hpp"
#include "train/expert_metrics.hpp"
#include "train/run/dashboard_process.hpp"
#include "train/run/libraries.hpp"
#include "train/run/resume.hpp"
#include "train/training_loop.hpp"

namespace llmtrain {

namespace {

constexpr int64_t warm_steps = 2;  ///< select kernels and touch buffers
constexpr int64_t min_steps = 5;
constexpr double enough_seconds = 3;

/// Measured steps hash their parameters as the steps of a run.
class HashObserver : public StepObserver {
 public:
  HashObserver(const TrainingOptions& options, ParameterHash& hash) : options_(options), hash_(hash) {}
  std::optional<uint64_t> hash_if_due(int64_t completed) override { return options_.hash_if_due(completed, hash_); }

 private:
  const TrainingOptions& options_;
  ParameterHash& hash_;
};

/// Maximum over the ranks, the same on all.
double agreed(Communicator& communicator, double seconds) {
  std::array<int64_t, 1> nanoseconds = {static_cast<int64_t>(seconds * 1e9)};
  communicator.maximum(nanoseconds);
  return static_cast<double>(nanoseconds[0]) * 1e-9;
}

/// Calls call(i) for i from 0 until there are enough; returns the seconds per call, and their number.
template <class F>
std::pair<double, int64_t> timed(Communicator& communicator, int64_t most, const F& call) {
  const double begin = now();
  int64_t count = 0;
  double seconds = 0;
  do {
    call(count++);
    seconds = agreed(communicator, now() - begin);
  } while (count < most && (count < min_steps || seconds < enough_seconds));
  return {seconds / static_cast<double>(count), count};
}

/// Allocates the plan, and predicts the time of the run from a few steps and batches with random weights. Writes
/// nothing. Collective; instead of a TrainingLoop.
Prediction measure_steps(const TrainingOptions& options, TrainingPlan& plan, Runtime& runtime, const Mesh& mesh) {
  Communicator& communicator = runtime.communicator();
  RunLogOptions silent;
  silent.active = false;
  RunLog log(silent);
  const PlannedMemory memory(plan.arena, mesh.parameters());
  RunProgress progress = options.progress;
  ParameterHash hash(plan.params(), communicator, runtime.stream());
  HashObserver observer(options, hash);
  SharedRows rows(mesh, plan.rows, [&plan] { plan.params().reducer().add_arrived(); });
  TrainingStep step({plan, progress, runtime, log, rows}, options.step, observer);
  plan.models.start(mesh, runtime.stream());
  plan.models.initialize(options.step.seed);
  const SamplingContext context{
      plan.models,         plan.arena, runtime, rows, {}, [](const std::string&) {}, [](const std::string&) {},
      [] { return false; }};

  Prediction time;
  const int64_t total = time.steps = plan.total_steps;
  // Steps are timed together if they learn from one rollout.
  const int64_t together = plan.batches().prepared_steps();
  step.prepare(0);
  double tokens = 0;  // what the objective counts, as the run's speed
  const auto one_step = [&](int64_t i) {
    for (const int64_t n = i % total; !step.is_prepared(); step.prepare(n)) {
      if (plan.batches().prepare(context, n) == Prepared::ready) continue;
      throw UserError(ExitCode::diverged, "the model's logits are not finite: a rollout cannot be measured");
    }
    tokens += static_cast<double>(step.prepared_count());
    step.run(i % total);
    step.finish_pending();
    if ((i + 1) % total == 0) step.prepare(0);
  };
  const auto steps = [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) one_step(i);
  };
  const int64_t warm = plan.source ? together : warm_steps;
  steps(0, warm);
  tokens = 0;
  std::tie(time.step, time.measured) =
      timed(communicator, int64_t{1} << 20, [&](int64_t i) { steps(warm + i * together, together); });
  time.step /= static_cast<double>(together);
  time.measured *= together;
  time.tokens_per_step = tokens / static_cast<double>(time.measured);

  if (!plan.validation) return time;
  const int64_t at_start = options.evaluation.at_start ? 1 : 0;
  time.evaluations = at_start + evaluations_from(options.evaluation, 0, total);
  if (time.evaluations == 0) return time;
  const int64_t batches = first_steps(options.evaluation, *plan.validation);
  Context ctx{plan.params(), plan.arena, runtime.stream(), options.step.seed, 0, false};
  ctx.rows = &rows;
  const int64_t piece = std::min(batches, 4 * mesh.data_ranks());
  const auto some = [&](int64_t) {
    evaluate(plan.model(), ctx, plan.evaluation_objective(), *plan.validation, piece, plan.evaluation_buffers(), mesh,
             [] { return false; });
  };
  some(0);
  time.evaluation =
      timed(communicator, min_steps, some).first * static_cast<double>(batches) / static_cast<double>(piece);
  return time;
}

/// Warns of ranks without work, and of groups that cost a new run more than others would.
void warn_of_groups(RunLog& log, const Config& config, const TrainingPlan& plan, const Communicator& c, bool resumed) {
  const int64_t working = plan.groups.count * mesh_of(config, c.size()).ranks_per_micro_batch();
  if (working < c.size()) {
    log.warn(
        fmt::format("{} of {} ranks have no reduction group: they own shards but compute nothing. Use a larger "
                    "batch.global, a smaller batch.micro or fewer ranks",
                    c.size() - working, c.size()));
  }
  if (resumed || c.rank() != 0) return;
  const ParamStoreOptions& options = plan.params().units().options();
  Transport transport = c.note().empty() ? Transport::nccl : Transport::messages;
  if (device_memory_is_host()) {
    const bool shares = options.node_size > 1 || options.ranks_per_node > 1;
    transport = shares ? Transport::shared_memory : Transport::messages;
  }
  const int64_t ranks_per_node = c.ranks_per_node() > 0 ? c.ranks_per_node() : c.size();
  const std::string advice = reduction_advice(plan.params().units(), plan.groups, ranks_per_node, transport);
  if (!advice.empty()) log.warn(advice);
}

void print_opening(RunLog& log, const Config& config, Runtime& runtime, const TrainingPlan& plan, const Dataset& data,
                   std::span<const std::string> notes, bool resumed) {
  Communicator& c = runtime.communicator();
  const DataStream& stream = plan.train;
  const ParamStore& params = plan.params();
  print_machine(log, attention_text(attention_library(), true, config.model, compute_dtype(config.precision.compute)),
                runtime);
  const int64_t parameters = params.units().parameters(), trained = params.units().trained_parameters();
  print_model(log, config.model, config.precision, parameters,
              trained < parameters ? std::optional(trained) : std::nullopt);
  if (config.run.finetuning == RunConfig::Finetuning::lora) print_quantization(log, config.quantization);
  print_plan(log, config.parallel.zero, config.batch, plan.groups);
  print_memory(log, plan.arena, c);
  if (params.units().policy().keeps_gathered)
    log.print("gathers    once an update: all weights have memory on every rank");
  print_offload(log, params.offload(), config.parallel.offload_path, config.provenance.where("parallel.offload_path"));
  log.print(fmt::format("data       {} tokens, {} samples, {} steps an epoch; {:.2f} epochs in {} steps",
                        count_text(data.train->tokens()), count_text(stream.samples()),
                        count_text(plan.steps_per_epoch()),
                        static_cast<double>(plan.total_steps) / static_cast<double>(plan.steps_per_epoch()),
                        count_text(plan.total_steps)));
  print_rows(log, data);
  print_sources(log, config.data, config.batch, stream, plan.total_steps);
  print_difficulties(log, config.curriculum, config.batch, stream);
  if (data.validation != nullptr) log.print(fmt::format("validation {} tokens", count_text(data.validation->tokens())));
  log.print(fmt::format("results    {}", config.run.directory()));
  warn_of_groups(log, config, plan, c, resumed);
  warn_of_rows(log, data);
  warn_of_missing_targets(log, stream, c);
  print_warnings(log, notes, runtime);
}

/// Starts the dashboard on rank 0 if the deck asks for one. Its failure is a warning.
std::unique_ptr<DashboardProcess> start_dashboard(RunLog& log, const Config& config, bool root) {
  if (!root || config.dashboard.port == 0) return nullptr;
  auto dashboard = std::make_unique<DashboardProcess>(config.dashboard, config.run.directory());
  if (dashboard->problem().empty()) {
    log.print("dashboard  " + dashboard->text());
  } else {
    log.warn(fmt::format("{}: the run continues without a dashboard: {}", config.provenance.where("dashboard.port"),
                         dashboard->problem()));
  }
  return dashboard;
}

void prepare_directory(const RunDirectory& directory, const std::string& deck, std::optional<ResumePoint>& from) {
  if (from && from->own) {
    directory.resume(deck);
  } else {
    directory.start(deck);
  }
  if (!from) return;
  for (const std::string& note : cut_back(directory.path(), *from)) from->notes.push_back(note);
}

/// Finds the checkpoint to resume from, which decides about values that the deck leaves to the device. Collective.
std::optional<ResumePoint> find_start(Job& job) {
  const Config& deck = job.deck;
  std::optional<ResumePoint> from =
      find_resume_point(deck.run, deck.checkpoint, deck.provenance, comparison_with(deck), job.runtime.communicator());
  if (from && deck.precision.compute == PrecisionConfig::Compute::automatic) {
    const Config recorded = load_config(from->manifest.deck, from->deck_name(), {}, DeckFiles::recorded);
    job.facts.compute = recorded.precision.compute;
  }
  return from;
}

/// Identifies the files that the deck names, and compares them with those of the run that it resumes. Returns them on
/// rank 0. Collective.
std::vector<NamedContent> compare_or_collect_contents(const Config& config, const Dataset& data,
                                                      std::optional<ResumePoint>& from, Communicator& communicator) {
  const std::string& path = config.model.path;
  std::vector<NamedContent> contents = data.contents;
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() != 0) return;
    if (!path.empty() && config.source.fallback_checkpoint.empty()) contents.push_back(content_of_model(path));
    for (const RoleFolderKey& role : method_of(config).role_folders(config)) {
      if (role.content == nullptr) continue;
      contents.push_back(content_of_model(role.path));
      contents.back().key = role.content;
    }
    if (from) compare_contents(contents, *from);
  });
  return contents;
}

/// Checks that a finished run's files have the same content under the names in the current deck. Collective.
void check_finished(Job& job, const RunDirectory* directory) {
  Communicator& communicator = job.runtime.communicator();
  std::optional<ResumePoint> from = find_start(job);
  throw_on_all_ranks(communicator, [&] {
    if (!from && directory != nullptr) directory->refuse_renamed_files();
  });
  const Dataset data = load_data(job.deck, job.facts, communicator, [](const std::string&) {});
  compare_or_collect_contents(job.deck, data, from, communicator);
}

MemoryLimits training_limits(const Config& config) {
  MemoryLimits limits = memory_limits(config);
  if (config.log.profile > 0) limits.profiled = compute_dtype(config.precision.compute);
  return limits;
}

/// The reason why the ranks of a node cannot share memory, the same on all; empty if they can. Collective.
std::string sharing_refusal(const Mesh& mesh, int64_t bytes) {
  std::string own = mesh.parameters().sharing_refusal(bytes * mesh.shape().ranks_of_blocks());
  if (mesh.shape().ranks_of_blocks() == 1) return own;
  const std::vector<std::string> all = mesh.job().gather_all(own);
  const auto refused = std::ranges::find_if(all, [](const std::string& text) { return !text.empty(); });
  return refused == all.end() ? "" : *refused;
}

/// Plans the run and checks that there is room for it. Ranks of a node share memory if they can; a note says why they
/// do not. Collective.
std::unique_ptr<TrainingPlan> make_checked_plan(Job& job, const Mesh& mesh, const Config& config, const Dataset& data) {
  Communicator &communicator = mesh.job(), &ranks = mesh.parameters();
  std::unique_ptr<TrainingPlan> plan;
  bool keeps_gathered = gathers_often(config, ranks.size());
  RankPosition position = rank_position(communicator, config.parallel);
  position.node_size = ranks.sharing_ranks();
  position.ranks_per_node = ranks.adding_ranks_per_node();
  const auto make = [&] {
    throw_on_all_ranks(communicator, [&] { plan = make_training_plan(config, data, position, keeps_gathered); });
  };
  make();
  if (keeps_gathered && !fits_plan(plan->arena, training_limits(config), communicator)) {
    keeps_gathered = false;
    make();
  }
  if (const std::string refusal = sharing_refusal(mesh, plan->arena.shared_bytes()); !refusal.empty()) {
    job.facts.add_note(refusal);
    position.node_size = 1;
    position.ranks_per_node = 0;
    make();
  }
  check_plan(plan->arena, training_limits(config), communicator);
  check_host_memory(plan->params().offload().pinned_bytes(), communicator);
  if (config.parallel.uses_disk()) {
    reserve_disk(plan->params().offload(), config.parallel.offload_path,
                 config.provenance.where("parallel.offload_path"), communicator);
  }
  return plan;
}

/// Sets the length of the run and its work, for the log's predictions.
void describe_work(RunLogOptions& options, const TrainingPlan& plan, const EvaluationConfig& evaluation,
                   int64_t sequence_length) {
  options.total_steps = plan.total_steps;
  options.flops_per_token = plan.model().flops_per_token(sequence_length);
  if (!plan.validation) return;
  options.evaluations_left = [evaluation, total = plan.total_steps](int64_t step) {
    return evaluations_from(evaluation, step, total);
  };
  // It has batches of a step's size, and the forward pass of a step, about a third of its work.
  options.evaluation_steps = static_cast<double>(first_steps(evaluation, *plan.validation)) / 3;
}

class TrainingRankPlan : public RankPlan {
 public:
  explicit TrainingRankPlan(std::unique_ptr<TrainingPlan> plan) : plan_(std::move(plan)) {}
  const Arena& arena() const override { return plan_->arena; }
  int64_t parameters() const override { return plan_->params().units().parameters(); }
  int64_t trained_parameters() const override { return plan_->params().units().trained_parameters(); }
  int64_t state_bytes() const override { return plan_->params().units().state_bytes(); }
  int64_t offloaded_bytes() const override { return plan_->params().offload().disk_bytes(); }
  int64_t pinned_bytes() const override { return plan_->params().offload().pinned_bytes(); }
  int64_t host_bytes() const override { return plan_->batches().host_bytes(); }
  int64_t cache_bytes() const override {
    const std::optional<TeacherOptions>& teacher = plan_->teacher_options;
    if (!teacher || !teacher->cached) return 0;
    return teacher->file_shape(plan_->train.samples(), plan_->train.counts().inputs).bytes();
  }
  const TrainingPlan* training() const override { return plan_.get(); }
  double flops_per_token(int64_t sequence_length) const override {
    return plan_->model().flops_per_token(sequence_length);
  }

 private:
  std::unique_ptr<TrainingPlan> plan_;
};

}  // namespace

void check_training(const Config& config, RunFacts& /*facts*/) {
  const Method& method = method_of(config);
  method.check_rows(config);
  method.try_programs(config);
}

Prediction measure_training(Job& job, const Config& config, const Dataset& data) {
  Communicator& communicator = job.runtime.communicator();
  const Mesh mesh(communicator, mesh_of(config, communicator.size()));
  if (const auto teacher = method_of(config).teacher(config, data); teacher && teacher->cached) {
    throw UserError(ExitCode::deck, fmt::format("{}: true would have the teacher score all data before the steps that "
                                                "--measure times: set false",
                                                config.provenance.where("distill.cache")));
  }
  const std::unique_ptr<TrainingPlan> plan = make_checked_plan(job, mesh, config, data);
  return measure_steps(training_options(config, *plan), *plan, job.runtime, mesh);
}

std::unique_ptr<RankPlan> plan_training(const Config& config, const Dataset& data, const RankPosition& position) {
  // As make_checked_plan() does, where there is a limit; without one the weights are assumed to fit.
  const bool keeps_gathered = gathers_often(config, position.size);
  std::unique_ptr<TrainingPlan> plan = make_training_plan(config, data, position, keeps_gathered);
  const int64_t outside_plan = device_context_bytes(position.node_size) + matmul_workspace_bytes() - between_starts;
  if (keeps_gathered && config.memory.limit > 0 && plan->arena.bytes() + outside_plan > config.memory.limit) {
    plan = make_training_plan(config, data, position);
  }
  return std::make_unique<TrainingRankPlan>(std::move(plan));
}

int run_training(Job& job) {
  const Config& deck = job.deck;
  Runtime& runtime = job.runtime;
  Communicator& communicator = runtime.communicator();
  const bool root = communicator.rank() == 0;
  JobOpening opening(job, [&](const RunDirectory* directory) { check_finished(job, directory); });
  if (opening.is_finished()) return 0;
  std::optional<ResumePoint> from = find_start(job);
  decide_compute(deck, job.facts, agreed_fast_bf16(communicator));
  const std::string attention =
      attention_backend(attention_library(), true, deck.model, compute_dtype(job.facts.compute));
  agree_on_attention(attention, communicator);
  agree_on_products(product_library(), communicator);
  if (from) {
    warn_if_backend_changed(*from, attention);
    warn_if_products_changed(*from, product_library());
  }
  job.examine(!from);
  throw_on_all_ranks(communicator, [&] {
    if (root) method_of(deck).check_rows(deck);
  });
  const auto print = [&](const std::string& text) { opening.print(text); };
  Dataset data = load_data(deck, job.facts, communicator, print);
  const Config config = job.config();
  std::vector<NamedContent> contents = compare_or_collect_contents(config, data, from, communicator);
  const Mesh mesh(communicator, mesh_of(config, communicator.size()));
  data.difficulties = find_difficulties(config, runtime, mesh, data, print);
  std::optional<ReferenceValues> references = find_references(config, runtime, mesh, data, print);
  std::optional<TeacherFile> teacher = find_teacher(config, runtime, mesh, data, print);
  const std::unique_ptr<TrainingPlan> plan = make_checked_plan(job, mesh, config, data);
  if (teacher) plan->teacher->set(std::move(*teacher));
  if (references) plan->reference->set(std::move(*references));
  plan->scores.answers.open(communicator);
  opening.on_root([&](const RunDirectory& directory) { prepare_directory(directory, write_deck(config), from); });
  TrainingOptions options = training_options(config, *plan);
  RunLogOptions log_setup = opening.log_options(plan->arena);
  describe_work(log_setup, *plan, options.evaluation, config.batch.sequence_length);
  log_setup.optimum = data.optimum;
  log_setup.run.scores = plan->scores.names();
  if (plan->validation) std::ranges::copy(plan->objective->score_names(), std::back_inserter(log_setup.run.scores));
  for (const MetricSpec& metric : plan->objective->metrics().subspan(1))
    log_setup.run.metrics.emplace_back(metric.name);
  if (config.curriculum.active()) log_setup.run.metrics.emplace_back("curriculum");
  for (const SourceMetric& metric : plan->batches().metrics()) log_setup.run.metrics.push_back(metric.name);
  if (plan->router) std::ranges::copy(expert_metric_names(), std::back_inserter(log_setup.run.metrics));
  if (from) {
    log_setup.resumed = log_state(from->manifest);
    log_setup.resumed_step = from->manifest.step;
  }
  RunLog& log = opening.open_log(log_setup);
  print_opening(log, config, runtime, *plan, data, job.facts.notes, from.has_value());
  const std::unique_ptr<DashboardProcess> dashboard = start_dashboard(log, config, root);
  print_signatures(log, plan->scores.answers);
  if (from) print_resume(log, *from);

  read_export_files(options, config, data, communicator);
  options.at_interval = [&] {
    if (dashboard && dashboard->has_ended())
      log.warn(fmt::format("the dashboard has ended ({}/dashboard.log); the run continues without it",
                           config.run.directory()));
  };
  options.checkpoints.attention = attention;
  options.checkpoints.products = product_library();
  options.checkpoints.contents = std::move(contents);
  options.checkpoints.from = from ? &*from : nullptr;
  TrainingLoop loop(std::move(options), *plan, runtime, mesh, log, opening.stop_monitor());
  try {
    if (loop.run() != 0) return static_cast<int>(ExitCode::stopped);
  } catch (const UserError& error) {
    log.fail(error.what());
    throw;
  }
  opening.mark_finished(loop.completed());
  return 0;
}

}  // namespace llmtrain
