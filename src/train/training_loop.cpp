#include "train/training_loop.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/activity.hpp"
#include "core/clock.hpp"
#include "core/stop_request.hpp"
#include "hf/export.hpp"
#include "kernels/attention.hpp"
#include "text/chat/chat_encoder.hpp"
#include "train/checkpoint_model.hpp"
#include "train/final_weights.hpp"
#include "train/rollback.hpp"
#include "train/run/job.hpp"
#include "train/run/run_directory.hpp"
#include "train/step_profile.hpp"

namespace llmtrain {

namespace {

/// Reads the files that belong to the initial weights, with the chat template that the deck names; on rank 0.
std::map<std::string, std::string> read_texts(const Config& config, Communicator& communicator) {
  std::map<std::string, std::string> texts;
  if (config.model.path.empty()) return texts;
  throw_on_all_ranks(communicator, [&] {
    if (communicator.rank() != 0) return;
    const std::string& instead = config.source.instead;
    texts = instead.empty() ? model_texts(config.model.path) : CheckpointModel::texts(instead);
    const std::string& name = config.chat.template_name;
    if (name == "auto" || name == "none") return;
    texts["chat_template.jinja"] = find_chat_templates(name, "").front().source;
  });
  return texts;
}

/// Those that every checkpoint stores.
std::map<std::string, std::string> stored_texts(const std::map<std::string, std::string>& texts) {
  std::map<std::string, std::string> stored;
  for (const char* name : {"config.json", "generation_config.json"}) {
    if (const auto text = texts.find(name); text != texts.end()) stored.insert(*text);
  }
  return stored;
}

}  // namespace

bool is_hashed(const Config& config, int64_t completed) {
  const auto due = [&](int64_t every) { return every > 0 && completed % every == 0; };
  return due(config.log.parameter_hash_every_steps) || due(config.checkpoint.every_steps);
}

StepOptions step_options(const Config& config, const TrainingPlan& plan) {
  return {config.schedule, config.optimizer.max_grad_norm, static_cast<uint64_t>(config.run.seed),
          PassGraphs::refusal(config.parallel.cuda_graphs, config.model, plan.params())};
}

TrainingLoop::TrainingLoop(const Config& config, TrainingPlan& plan, Runtime& runtime, RunLog& log,
                           StopMonitor& stop_monitor, const ResumePoint* from, std::vector<NamedContent> contents)
    : config_(config),
      plan_(plan),
      runtime_(runtime),
      log_(log),
      memory_(plan.arena, runtime.communicator()),
      progress_(config),
      hash_(plan.params(), runtime.communicator(), runtime.stream()),
      step_(plan, progress_, runtime, log, step_options(config, plan)),
      evaluation_(plan, progress_, runtime, log, config.evaluation, static_cast<uint64_t>(config.run.seed)),
      samples_(plan, progress_, runtime, log, config.log, static_cast<uint64_t>(config.run.seed)) {
  plan.models.start(runtime.communicator(), runtime.stream());
  texts_ = read_texts(config, runtime.communicator());
  CheckpointOptions options;
  options.config = config.checkpoint;
  options.needs_best = config.needs_best();
  options.directory = RunDirectory::path_of(config);
  options.deck = write_deck(config);
  options.attention = attention_backend(attention_library(), config);
  options.contents = std::move(contents);
  options.texts = stored_texts(texts_);
  options.from = from;
  if (config.checkpoint.export_model == CheckpointConfig::Export::none) texts_.clear();
  checkpoints_.emplace(plan, progress_, hash_, runtime, log, stop_monitor, std::move(options));
  step_.before_update = [this] { checkpoints_->wait_for_update(); };
  step_.hash_if_due = [this](int64_t completed) {
    return is_hashed(config_, completed) ? std::optional(hash_.after(completed)) : std::nullopt;
  };
  start(from);
}

void TrainingLoop::start(const ResumePoint* from) {
  RoleModel& policy = plan_.models.at(Role::policy);
  const bool has_frozen = policy.params().trained_parameter_count() < policy.params().parameter_count();
  if (from == nullptr || has_frozen) {  // checkpoints do not contain frozen weights
    const LoadedWeights loaded = policy.load(runtime_.communicator(), runtime_.stream());
    if (!loaded.text.empty()) log_.print("weights    " + loaded.text);
    for (const std::string& warning : loaded.warnings) log_.warn(warning);
  }
  if (from != nullptr) {
    completed_ = checkpoints_->restore(*from);
  } else {
    progress_.pending.evaluation = config_.evaluation.at_start;
  }
  if (plan_.tokenizer != nullptr) {
    for (const std::string& warning : plan_.tokenizer->warnings()) log_.warn(warning);
  }
}

int64_t TrainingLoop::run() {
  const std::string no_graphs = step_options(config_, plan_).no_graphs;
  if (Graph::available() && !no_graphs.empty()) log_.print("graphs     none: " + no_graphs);
  const int64_t total = plan_.total_steps;
  if (completed_ < total) step_.prepare(completed_);
  StepProfile profile(config_.log.profile, total - completed_);
  const auto report_profile = [&](bool the_end) {
    if (!profile.due(the_end)) return;
    profile.report(runtime_, compute_dtype(config_.precision), RunDirectory::path_of(config_), log_);
  };
  int64_t stop = run_due_actions();
  while (completed_ < total && !progress_.best.stops() && stop == 0) {
    profile.begin_step(completed_, runtime_.stream());
    const bool done = step_.run(completed_);
    profile.end_step();
    if (profile.recording()) {
      int64_t crowded[] = {profile.crowded() ? 1 : 0};
      runtime_.communicator().maximum(crowded);
      if (crowded[0] != 0) profile.end_here();
    }
    report_profile(false);
    if (done) {
      ++completed_;
      const bool last = completed_ == total;
      const int64_t samples = config_.log.samples_every_steps;
      progress_.pending.evaluation = due(config_.evaluation.every_steps) || (last && config_.evaluation.at_end);
      progress_.pending.samples = due(samples) || (last && samples > 0);
    }
    stop = run_due_actions();
  }
  // A job that was asked to stop has little time, and the next one records again.
  if (stop == 0) report_profile(true);
  return finish(stop);
}

int64_t TrainingLoop::run_due_actions() {
  const SectionScope section(Section::step);  // inner work may set its own section
  const DivergenceGuard& guard = progress_.guard;
  RunProgress::Pending& pending = progress_.pending;
  const StopRequested stop_requested = [this] { return checkpoints_->stop_requested(completed_, step_.longest()); };
  int64_t stop = 0;
  const bool save = due(config_.checkpoint.every_steps);
  if (pending.evaluation || pending.samples || save || completed_ == plan_.total_steps) step_.finish_pending();
  do {
    if (guard.must_roll_back()) roll_back_and_prepare();
    if (pending.evaluation) stop = evaluation_.run(completed_, stop_requested);
    if (pending.samples && stop == 0 && !guard.must_roll_back()) stop = samples_.run(completed_, stop_requested);
    if (stop == 0 && guard.must_roll_back()) continue;
    stop = save_if_due(stop);
  } while (stop == 0 && (guard.must_roll_back() || pending.evaluation || pending.samples));
  return stop;
}

void TrainingLoop::roll_back_and_prepare() {
  completed_ = roll_back(progress_, *checkpoints_, step_, completed_, RunDirectory::path_of(config_),
                         runtime_.communicator(), log_);
  if (completed_ < plan_.total_steps) step_.prepare(completed_);
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
  const bool ends = !progress_.pending.evaluation && (completed_ >= plan_.total_steps || progress_.best.stops());
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
    log_.print(fmt::format("graphs     {} recorded; {} of {} passes ran as graphs", graphs.recorded(),
                           graphs.launched(), graphs.all()));
  }
  if (const int64_t bytes = memory_.unplanned_bytes(); bytes > 0) {
    log_.warn(
        fmt::format("kernels needed {} of temporary memory beside the plan, which `--estimate` does not show: "
                    "please report the deck",
                    bytes_text(static_cast<double>(bytes))));
  }
  const RunProgress::Pending& pending = progress_.pending;
  if (stop != 0) {
    const int64_t saved = checkpoints_->saved_step();
    const std::string place = pending.evaluation ? " in an evaluation" : pending.samples ? " in sampling" : "";
    log_.stop(fmt::format("stopped by {}{} after {} of {} steps; the same command {}resumes from {}", stop_reason(stop),
                          place, completed_, plan_.total_steps,
                          config_.run.overwrite ? "with run.overwrite=false " : "",
                          saved == completed_ ? "there" : fmt::format("step {}", std::max<int64_t>(saved, 0))));
    return stop;
  }
  const CheckpointConfig& checkpoint = config_.checkpoint;
  if (config_.needs_best()) {
    load_best_weights(plan_, *checkpoints_, progress_.best.step(), checkpoint.best_metric, completed_, runtime_, log_);
  }
  if (checkpoint.export_model != CheckpointConfig::Export::none) {
    export_final_weights(plan_, checkpoint, RunDirectory::path_of(config_) + "/export", texts_, config_.data.tokenizer,
                         runtime_.communicator(), log_);
  }
  log_.finish(progress_.best.stops()
                  ? fmt::format("stopped early after {} steps: {} evaluations without a better {}", completed_,
                                progress_.best.without_improvement(), name_of(config_.checkpoint.best_metric))
                  : "finished");
  return 0;
}

}  // namespace llmtrain
