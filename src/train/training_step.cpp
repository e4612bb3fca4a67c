#include "train/training_step.hpp"

#include <algorithm>
#include <cmath>

#include "core/activity.hpp"
#include "core/clock.hpp"
#include "core/profile.hpp"
#include "kernels/elementwise.hpp"
#include "models/router_bias.hpp"
#include "optim/schedule.hpp"
#include "parallel/traffic.hpp"
#include "train/expert_metrics.hpp"
#include "train/step_hook.hpp"

namespace llmtrain {

TrainingStep::TrainingStep(const RunContext& run, StepOptions options, StepObserver& observer)
    : plan_(run.plan),
      progress_(run.progress),
      communicator_(run.runtime.communicator()),
      stream_(run.runtime.stream()),
      log_(run.log),
      options_(std::move(options)),
      observer_(observer),
      passes_(plan_, run.rows, stream_, options_.seed, options_.no_graphs),
      values_(plan_.buffers.sums, *plan_.objective, communicator_, stream_) {
  if (options_.replay_every > 0) {
    replay_.emplace(run.rows.mesh(), options_.replay_every, plan_.total_steps, options_.seed);
  }
}

void TrainingStep::prepare(int64_t n) { prepared_ = passes_.prepare(progress_.guard.data_step(n)); }

StepRecord TrainingStep::begin_record(int64_t n) const {
  StepRecord record;
  record.step = n + 1;
  record.tokens = passes_.count();
  record.curriculum = passes_.curriculum();
  record.processed = passes_.processed();
  record.samples = passes_.step().samples_hash;
  record.sequences = static_cast<int64_t>(passes_.step().samples.size());
  record.rollout = plan_.batches().metric_values();
  // skipped steps do not advance the schedule
  const int64_t updates = std::max<int64_t>(n - progress_.scaler.skipped_steps(), 0);
  record.learning_rate = learning_rate(options_.schedule, updates, plan_.total_steps);
  return record;
}

/// Clears the sums of the step, and sets the factor of its cotangents.
void TrainingStep::begin_sums(double count) {
  loss_.clear();
  const Tensor& scale = plan_.buffers.cotangent_scale;
  if (!scale.empty()) fill(scale, progress_.scaler.cotangent(count), stream_);
  values_.clear();
}

void TrainingStep::call_hook(StepRecord& record) {
  if (step_hook == nullptr) return;
  const int64_t n = record.step - 1;
  step_hook(
      {n, progress_.guard.data_step(n), communicator_.rank(), plan_.params(), loss_, record.learning_rate, stream_});
}

void TrainingStep::decide_on_device(double divisor) {
  const std::span<const int64_t> host = loss_.limbs();
  LLMTRAIN_CHECK(std::ranges::all_of(host, [](int64_t limb) { return limb == 0; }),
                 "the device does not see what a hook adds to the loss");
  values_.decide_on_device(divisor, options_.max_grad_norm);
}

void TrainingStep::run_passes(int64_t n, double scale) {
  if (!replay_ || !replay_->is_due(n)) return passes_.run(n, scale, clock_);
  passes_.run(n, scale, clock_, replay_->round(n, passes_.schedule()));
  const uint64_t own = plan_.params().reducer().hash();
  observer_.replayed(n, replay_->check(n, own, [&](int64_t rank) { return passes_.replay(rank, clock_); }));
}

bool TrainingStep::run(int64_t n) {
  using Phases = StepRecord::Phases;
  const SectionScope section(Section::step);
  const ProfileSpan whole(SpanKind::phase, "step");
  activity().step = n + 1;
  const double begin = now();
  traffic().begin_step();
  if (!pending_) clock_.reset();
  StepRecord record = begin_record(n);
  const double count = static_cast<double>(std::max<int64_t>(record.tokens, 1));
  const double divisor = progress_.scaler.divisor(count);
  begin_sums(count);
  run_passes(n, progress_.scaler.active() ? progress_.scaler.cotangent(count) : 1);
  record.own = passes_.own();
  prepared_ = false;
  if (n + 1 < plan_.total_steps) prepare(n + 1);

  ProfileSpan phase(SpanKind::phase, "reduction");
  clock_.start_lap();
  plan_.params().reducer().finish();
  call_hook(record);
  if (plan_.router) loss_.add(plan_.router->loss());
  sum_gradient_squares(plan_.buffers.sums.of_gradients(), plan_.params(), stream_);
  const bool by_device = values_.device_decides();
  if (by_device) decide_on_device(divisor);
  clock_.lap(&Phases::reduction);
  finish_pending();  // the step before, while the device works on this one
  if (progress_.guard.must_roll_back()) return false;
  clock_.start_lap();
  values_.fetch();
  if (!by_device) {
    values_.sum_on_host(loss_);
    read_values(record, divisor);
  }
  clock_.lap(&Phases::reduction);

  phase.next("update");
  if (by_device || check(record)) update(record, divisor);
  phase.next("log");
  record.parameters = observer_.hash_if_due(record.step);
  clock_.lap(&Phases::optimizer);
  traffic().end_step();
  finish({std::move(record), divisor, begin});
  return true;
}

/// Logs the step, or leaves that to finish_pending() if the device has decided.
void TrainingStep::finish(Pending step) {
  if (!values_.device_decides()) {
    clock_.finish(step.record, step.begin);
    return log(step.record);
  }
  const bool hashed = step.record.parameters.has_value();
  pending_ = std::move(step);
  if (hashed) finish_pending();
}

void TrainingStep::log(const StepRecord& record) {
  longest_ = std::max(longest_, record.seconds);
  log_.step(record, observer_.values_of_ranks(record));
}

bool TrainingStep::check(StepRecord& record) {
  const int64_t n = record.step - 1;
  LossScaler& scaler = progress_.scaler;
  const double scale = scaler.scale();
  // If the loss itself is not finite, a smaller scale does not help.
  const std::optional<double> loss = record.tokens > 0 ? std::optional(record.loss) : std::nullopt;
  const bool skips = (!loss || std::isfinite(*loss)) && scaler.update(!std::isfinite(record.grad_norm));
  if (scaler.active()) record.scaling = {scale, scaler.skipped_steps(), skips};
  if (skips) return false;
  DivergenceGuard& guard = progress_.guard;
  record.problem = guard.check(n, loss, record.grad_norm, scaler.active() ? scale : 0);
  record.bad_steps = record.problem.empty() ? 0 : guard.bad_in_row();
  if (record.bad_steps > 0) {
    record.sample_ids = plan_.batches().plan(guard.data_step(n)).samples;
    record.sample_ids = plan_.batches().rows_of(record.sample_ids);
    record.places = plan_.batches().places_of(record.sample_ids);
  }
  return record.bad_steps == 0;
}

void TrainingStep::read_values(StepRecord& record, double divisor) const {
  record.loss = values_.loss(record.tokens);
  record.metrics = values_.metrics(record.tokens);
  if (record.curriculum) record.metrics.push_back({"curriculum", "curriculum", *record.curriculum});
  const std::vector<SourceMetric> names = plan_.batches().metrics();
  for (size_t m = 0; m < record.rollout.size(); ++m) {
    record.metrics.push_back({names[m].name, names[m].label, record.rollout[m]});
  }
  record.grad_norm = values_.grad_norm(divisor);
  if (plan_.router) add_expert_metrics(record, plan_.router->sum(communicator_));
}

void TrainingStep::finish_pending() {
  if (!pending_) return;
  auto [record, divisor, begin] = *std::exchange(pending_, std::nullopt);
  const ProfileSpan phase(SpanKind::phase, "log");
  values_.wait();
  read_values(record, divisor);
  const bool applies = check(record);
  LLMTRAIN_CHECK(applies == values_.applies(), "the host and the device disagree about an update");
  clock_.finish_on_device(record, begin);
  log(record);
}

void TrainingStep::update(const StepRecord& record, double divisor) {
  const bool by_device = values_.device_decides();
  const double scale = by_device ? 1 : clip_factor(record.grad_norm, options_.max_grad_norm) / divisor;
  observer_.before_update();
  if (plan_.router && options_.router_bias_rate > 0) {
    move_router_biases(plan_.params(), plan_.model().router_biases(), plan_.router->pairs(), options_.router_bias_rate,
                       stream_);
  }
  const int64_t t = std::max<int64_t>(progress_.guard.updates(record.step) - progress_.scaler.skipped_steps(), 1);
  plan_.optimizer->update(
      plan_.params(),
      {t, record.learning_rate, scale, by_device ? plan_.buffers.sums.decision : Tensor{}, &plan_.params().ranks()},
      stream_);
}

}  // namespace llmtrain
