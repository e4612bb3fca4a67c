#include "train/training_loop.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "core/activity.hpp"
#include "core/number_text.hpp"
#include "core/stop_request.hpp"
#include "rollout/scoring.hpp"
#include "train/final_weights.hpp"
#include "train/rollback.hpp"

namespace llmtrain {

std::optional<uint64_t> TrainingOptions::hash_if_due(int64_t completed, ParameterHash& hash) const {
  const auto due = [&](int64_t every) { return every > 0 && completed % every == 0; };
  const bool hashed = due(log.parameter_hash_every_steps) || due(checkpoints.config.every_steps);
  return hashed ? std::optional(hash.after(completed)) : std::nullopt;
}

TrainingLoop::TrainingLoop(TrainingOptions options, TrainingPlan& plan, Runtime& runtime, const Mesh& mesh, RunLog& log,
                           StopMonitor& stop_monitor)
    : options_(std::move(options)),
      memory_(plan.arena, mesh.parameters()),
      progress_(options_.progress),
      rows_(mesh, plan.rows, [&plan] { plan.params().reducer().add_arrived(); }),
      run_{plan, progress_, runtime, log, rows_},
      monitor_(runtime.communicator(), {options_.log.system,
                                        options_.checkpoints.directory,
                                        {.seconds = static_cast<double>(options_.log.slow_after.seconds)}}),
      hash_(plan.params(), runtime.communicator(), runtime.stream()),
      step_(run_, options_.step, *this),
      evaluation_(run_, options_.evaluation, options_.step.seed, options_.checkpoints.directory),
      samples_(run_, options_.log, options_.step.seed, options_.stop_ids) {
  plan.models.start(mesh, runtime.stream());
  checkpoints_.emplace(run_, hash_, stop_monitor, options_.checkpoints);
  start();
}

SystemRecord TrainingLoop::values_of_ranks(const StepRecord& record) {
  monitor_.add(record);
  if (!run_.log.ends_interval(record.step)) return {};
  if (options_.at_interval) options_.at_interval();
  SystemRecord values = monitor_.exchange(record.step);
  if (const std::optional<Replay>& replay = step_.replay()) {
    values.values.push_back({"replay/count", {}, static_cast<double>(replay->count())});
    values.values.push_back({"replay/seconds", {}, replay->seconds()});
  }
  return values;
}

/// Ends the job if the ranks disagree.
void TrainingLoop::replayed(int64_t completed, const ReplayFindings& findings) {
  if (findings.ranks.empty()) return checkpoints_->trust_saved();
  throw_replay_error(run_, *checkpoints_, findings, completed, options_.checkpoints.directory);
}

void TrainingLoop::load_weights(Role role, const std::string& label, bool adapters) {
  const LoadedWeights loaded =
      run_.plan.models.at(role).load(run_.runtime.communicator(), run_.runtime.stream(), adapters);
  if (!loaded.text.empty()) run_.log.print(label + loaded.text);
  for (const std::string& warning : loaded.warnings) run_.log.warn(warning);
}

/// A run that begins with another run's checkpoint has its own copy of what the adapters started with.
void TrainingLoop::take_adapter_start(const std::string& checkpoint) {
  const std::string file = run_.plan.models.at(Role::policy).adapter_start();
  if (file.empty()) return;
  on_root(run_.runtime.communicator(), [&] {
    const std::filesystem::path to = file;
    const auto from = std::filesystem::weakly_canonical(checkpoint).parent_path().parent_path() / to.filename();
    std::error_code error;
    std::filesystem::copy_file(from, to, std::filesystem::copy_options::overwrite_existing, error);
    if (error) throw UserError(ExitCode::missing_input, fmt::format("{}: {}", from.string(), error.message()));
  });
}

void TrainingLoop::start() {
  const ResumePoint* from = options_.checkpoints.from;
  const UnitStates& units = run_.plan.params().units();
  const bool has_frozen = units.trained_parameters() < units.parameters();
  if (from != nullptr && !from->own) take_adapter_start(from->path);
  // Checkpoints do not contain frozen weights.
  if (from == nullptr || has_frozen) load_weights(Role::policy, "weights    ", from == nullptr);
  if (run_.plan.models.has(Role::reference)) load_weights(Role::reference, "reference  ");
  if (run_.plan.models.has(Role::teacher)) load_weights(Role::teacher, "teacher    ");
  if (run_.plan.models.has(Role::reward)) load_weights(Role::reward, "reward     ");
  run_.plan.scores.answers.set_stop_ids({options_.stop_ids.begin(), options_.stop_ids.end()});
  if (from != nullptr) {
    completed_ = checkpoints_->restore(*from);
  } else {
    progress_.pending.evaluation = options_.evaluation.at_start;
    if (run_.plan.sync) run_.plan.sync->fill_plane(run_.runtime.stream());
  }
  if (run_.plan.tokenizer != nullptr) {
    for (const std::string& warning : run_.plan.tokenizer->warnings()) run_.log.warn(warning);
  }
  const std::string& no_graphs = options_.step.no_graphs;
  if (Graph::available() && !no_graphs.empty()) run_.log.print("graphs     none: " + no_graphs);
  for (NodeNotice& notice : checkpoints_->take_notices()) {
    notice.step = completed_;
    run_.log.notice(notice);
  }
  profile_.emplace(options_.log.profile, run_.plan.total_steps - completed_);
}

int64_t TrainingLoop::run() {
  if (completed_ < run_.plan.total_steps) step_.prepare(completed_);
  int64_t stop = run_due_actions();
  while (completed_ < run_.plan.total_steps && !progress_.best.stops() && stop == 0) {
    profile_->begin_step(completed_, run_.runtime.stream());
    stop = prepare_step();
    if (stop != 0) break;
    const bool done = step_.run(completed_);
    profile_->end_step(run_.runtime.communicator());
    if (done) complete_step();
    stop = run_due_actions();
  }
  // A job that was asked to stop has little time, and the next one records again.
  if (stop == 0) report_profile_if_due(true);
  return finish(stop);
}

void TrainingLoop::complete_step() {
  ++completed_;
  if (run_.plan.sync && run_.plan.sync->is_due(completed_)) {
    checkpoints_->wait_before_update();
    run_.plan.sync->move(run_.runtime.communicator(), run_.runtime.stream());
  }
  const bool last = completed_ == run_.plan.total_steps;
  const int64_t samples = options_.log.samples_every_steps;
  progress_.pending.evaluation = due(options_.evaluation.every_steps) || (last && options_.evaluation.at_end);
  progress_.pending.samples = due(samples) || (last && samples > 0);
}

void TrainingLoop::report_profile_if_due(bool the_end) {
  if (!profile_->due(the_end)) return;
  profile_->report(run_.runtime, options_.compute, options_.checkpoints.directory, run_.log);
}

int64_t TrainingLoop::prepare_step() {
  int64_t stop = 0;
  while (!step_.is_prepared() && stop == 0) stop = prepare_batches();
  return stop;
}

int64_t TrainingLoop::prepare_batches() {
  step_.finish_pending();
  if (progress_.guard.must_roll_back()) {
    roll_back_and_prepare();
    return 0;
  }
  TrainingPlan& plan = run_.plan;
  const std::vector<int32_t> stop_ids(options_.stop_ids.begin(), options_.stop_ids.end());
  int64_t stop = 0;
  const SamplingContext context{
      plan.models,
      plan.arena,
      run_.runtime,
      run_.rows,
      stop_ids,
      [this](const std::string& text) { run_.log.print(text); },
      [this](const std::string& text) { run_.log.warn(text); },
      [&] { return (stop = checkpoints_->stop_requested(completed_, step_.longest())) != 0; }};
  switch (plan.batches().prepare(context, progress_.guard.data_step(completed_))) {
    case Prepared::ready:
      step_.prepare(completed_);
      return 0;
    case Prepared::interrupted:
      return save_if_due(stop);
    case Prepared::not_finite:  // the rollback is next
      progress_.guard.mark_lost(completed_, "the logits of sampling are not finite");
  }
  return 0;
}

int64_t TrainingLoop::run_due_actions() {
  if (const std::string& limit = step_.graphs().limit(); !limit.empty() && !std::exchange(graphs_are_limited_, true)) {
    run_.log.print("graphs     no more are recorded: " + limit);
  }
  report_profile_if_due(false);
  const SectionScope section(Section::step);  // inner work may set its own section
  const DivergenceGuard& guard = progress_.guard;
  RunProgress::Pending& pending = progress_.pending;
  const StopRequested stop_requested = [this] { return checkpoints_->stop_requested(completed_, step_.longest()); };
  int64_t stop = 0;
  const bool save = due(options_.checkpoints.config.every_steps);
  if (pending.evaluation || pending.samples || save || completed_ == run_.plan.total_steps) step_.finish_pending();
  do {
    if (guard.must_roll_back()) roll_back_and_prepare();
    const bool evaluates = pending.evaluation;
    if (evaluates) stop = evaluation_.run(completed_, stop_requested);
    if (evaluates && !pending.evaluation && completed_ > 0 && progress_.best.step() == completed_) write_adapters();
    if (pending.samples && stop == 0 && !guard.must_roll_back()) stop = samples_.run(completed_, stop_requested);
    if (stop == 0 && guard.must_roll_back()) continue;
    stop = save_if_due(stop);
  } while (stop == 0 && (guard.must_roll_back() || pending.evaluation || pending.samples));
  return stop;
}

std::string TrainingLoop::adapter_folder() const { return options_.checkpoints.directory + "/adapter"; }

void TrainingLoop::write_adapters() {
  if (!run_.plan.models.at(Role::policy).has_adapters()) return;
  llmtrain::write_adapters(run_, adapter_folder());
}

void TrainingLoop::roll_back_and_prepare() {
  completed_ = roll_back(run_, *checkpoints_, step_, completed_, options_.checkpoints.directory);
  if (completed_ < run_.plan.total_steps) step_.prepare(completed_);
}

/// Returns the reason to stop (`stop`, if one is known), or 0. If the state is not finite, the run rolls back.
int64_t TrainingLoop::save_if_due(int64_t stop) {
  RunCheckpoints::Requests requests = checkpoints_->agree_on_requests(step_.longest());
  if (stop == 0) stop = requests.stop;
  requests.stop = stop;
  if (step_.is_pending() && (stop != 0 || requests.save != 0)) {
    step_.finish_pending();
    if (progress_.guard.must_roll_back()) return 0;  // the rollback comes first; the request will be repeated
  }
  const bool ends = !progress_.pending.evaluation && (completed_ >= run_.plan.total_steps || progress_.best.stops());
  if (!checkpoints_->save_if_due(completed_, requests, ends) && progress_.guard.must_roll_back()) {
    roll_back_and_prepare();
    return stop;
  }
  return ends && !progress_.pending.samples ? 0 : stop;
}

int64_t TrainingLoop::finish(int64_t stop) {
  const SectionScope section(Section::ending);
  checkpoints_->finish();
  const PassGraphs& graphs = step_.graphs();
  if (graphs.recorded() > 0) {
    run_.log.print(fmt::format("graphs     {} recorded; {} of {} passes ran as graphs", graphs.recorded(),
                               graphs.launched(), graphs.all()));
  }
  if (const int64_t bytes = memory_.unplanned_bytes(); bytes > 0) {
    run_.log.warn(
        fmt::format("kernels needed {} of temporary memory beyond the plan, which `--estimate` does not show: "
                    "please report the deck",
                    bytes_text(static_cast<double>(bytes))));
  }
  const RunProgress::Pending& pending = progress_.pending;
  if (stop != 0) {
    const int64_t saved = checkpoints_->saved_step();
    const std::string place = pending.evaluation ? " in an evaluation" : pending.samples ? " in sampling" : "";
    run_.log.stop(fmt::format("stopped by {}{} after {} of {} steps; the same command {}resumes from {}",
                              stop_reason(stop), place, completed_, run_.plan.total_steps,
                              options_.overwrite ? "with run.overwrite=false " : "",
                              saved == completed_ ? "there" : fmt::format("step {}", std::max<int64_t>(saved, 0))));
    return stop;
  }
  const CheckpointConfig& checkpoint = options_.checkpoints.config;
  if (options_.checkpoints.needs_best) {
    load_best_weights(run_, *checkpoints_, checkpoint.best_metric, completed_);
  }
  write_adapters();
  const bool adapters = run_.plan.models.at(Role::policy).has_adapters();
  if (adapters) run_.log.print("adapters   " + adapter_folder());
  if (checkpoint.writes_model(adapters)) {
    options_.exported.output = options_.checkpoints.directory + "/export";
    export_final_weights(run_, checkpoint, std::move(options_.exported), adapter_folder(), options_.tokenizer,
                         options_.added_tokens);
  }
  run_.log.finish(progress_.best.stops()
                      ? fmt::format("stopped early after {} steps: {} evaluations without a better {}", completed_,
                                    progress_.best.without_improvement(), checkpoint.best_metric)
                      : "finished");
  return 0;
}

}  // namespace llmtrain
