#include "train/training_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/activity.hpp"
#include "core/clock.hpp"
#include "core/profile.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/reduce.hpp"
#include "kernels/step_decision.hpp"
#include "optim/schedule.hpp"
#include "train/step_hook.hpp"

namespace llmtrain {

TrainingStep::TrainingStep(TrainingPlan& plan, RunProgress& progress, Runtime& runtime, RunLog& log,
                           StepOptions options)
    : parts_(plan),
      progress_(progress),
      communicator_(runtime.communicator()),
      log_(log),
      options_(std::move(options)),
      ctx_{plan.params(), plan.arena, runtime.stream(), options_.seed},
      prefetcher_(plan.train),
      graphs_(Graph::available() && options_.no_graphs.empty(), plan.params()),
      sums_((squares_row() + 1) * ExactSum::integer_count * static_cast<int64_t>(sizeof(int64_t))),
      decision_(sizeof(StepDecision)) {}

void TrainingStep::prepare(int64_t n) {
  parts_.train.plan(progress_.guard.data_step(n), plan_);
  count_ = parts_.objective->count(plan_);
  local_micro_batches_.clear();
  next_local_ = 0;
  const int64_t micro_batches = static_cast<int64_t>(plan_.micro_batches.size());
  const int64_t groups = parts_.groups.used(micro_batches);
  for (int64_t group = communicator_.rank(); group < groups; group += communicator_.size()) {
    const int64_t end = std::min(parts_.groups.begin(group + 1), micro_batches);
    for (int64_t index = parts_.groups.begin(group); index < end; ++index) local_micro_batches_.push_back(index);
  }
  if (!local_micro_batches_.empty()) {
    prefetcher_.request(plan_.micro_batches[static_cast<size_t>(local_micro_batches_.front())]);
  }
}

void TrainingStep::discard() {
  if (next_local_ < local_micro_batches_.size()) prefetcher_.take();
  local_micro_batches_.clear();
}

StepRecord TrainingStep::begin_record(int64_t n) const {
  StepRecord record;
  record.step = n + 1;
  record.tokens = count_;
  record.samples = plan_.samples_hash;
  // skipped steps do not advance the schedule
  const int64_t updates = std::max<int64_t>(n - progress_.scaler.skipped_steps(), 0);
  record.learning_rate = learning_rate(options_.schedule, updates, parts_.total_steps);
  return record;
}

bool TrainingStep::run(int64_t n) {
  const SectionScope section(Section::step);
  const ProfileSpan whole(SpanKind::phase, "step");
  activity().step = n + 1;
  const double begin = now();
  StepRecord record = begin_record(n);
  StepBuffers& buffers = parts_.buffers;
  ParamStore& params = parts_.params();
  ctx_.step = n;
  ctx_.training = true;
  loss_.clear();
  const double count = static_cast<double>(std::max<int64_t>(record.tokens, 1));
  if (!buffers.cotangent_scale.empty()) fill(buffers.cotangent_scale, progress_.scaler.cotangent(count), ctx_.stream);
  fill_zero(buffers.sums.data, buffers.sums.bytes(), ctx_.stream);
  if (!pending_) phases_ = {};

  run_rounds();
  const int64_t data_step = progress_.guard.data_step(n);
  if (n + 1 < parts_.total_steps) prepare(n + 1);
  const double reduced = now();
  ProfileSpan phase(SpanKind::phase, "reduction");
  params.finish_gradients();
  if (step_hook != nullptr) step_hook({n, data_step, communicator_.rank(), params, loss_, record.learning_rate});
  const double divisor = progress_.scaler.divisor(count);
  sum_gradient_squares(buffers.sums.rows(squares_row(), 1), params, ctx_.stream);
  const bool by_device = device_decides();
  if (by_device) decide_on_device(divisor);
  const double queued = now();
  phases_.reduction += queued - reduced;
  finish_pending();  // the step before, while the device works on this one
  if (progress_.guard.must_roll_back()) return false;
  const double learned = now();
  copy_to_host(sums_.data(), buffers.sums.data, buffers.sums.bytes(), ctx_.stream);
  if (by_device) {
    copy_to_host(decision_.data(), buffers.decision.data, buffers.decision.bytes(), ctx_.stream);
    decided_.record(ctx_.stream);
  } else {
    sum_on_host();
    read_values(record, divisor);
  }
  const double decided = now();
  phase.next("update");
  phases_.reduction += decided - learned;
  if (by_device) {
    update(record, 1);
  } else if (check(record, n)) {
    update(record, clip_factor(record.grad_norm, options_.max_grad_norm) / divisor);
  }
  phase.next("log");
  record.parameters = hash_if_due(record.step);
  const double end = now();
  phases_.optimizer += end - decided;
  if (by_device) {
    const bool hashed = record.parameters.has_value();
    pending_ = {std::move(record), divisor, begin};
    if (hashed) finish_pending();
  } else {
    record.phases = phases_;
    this->log(record, end - begin);
  }
  return true;
}

void TrainingStep::log(StepRecord& record, double seconds) {
  record.seconds = seconds;
  longest_ = std::max(longest_, seconds);
  log_.step(record);
}

bool TrainingStep::check(StepRecord& record, int64_t n) {
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
  if (record.bad_steps > 0) record.sample_ids = parts_.train.plan(guard.data_step(n)).samples;
  return record.bad_steps == 0;
}

bool TrainingStep::device_decides() const { return !parts_.buffers.decision.empty() && communicator_.sums_on_device(); }

/// Sums over all ranks determine whether the update of a step takes place, and the factor that clips its gradients. If
/// the device adds them and decides, the host queues the update, and the next step's passes, in advance: the device
/// never waits for the host. The host reads, checks and logs the values of a step after it has queued the passes of the
/// next one. If they cause a rollback, that next step is discarded.
void TrainingStep::decide_on_device(double divisor) {
  const std::span<const int64_t> host = loss_.limbs();
  LLMTRAIN_CHECK(std::all_of(host.begin(), host.end(), [](int64_t limb) { return limb == 0; }),
                 "what a hook adds to the loss is not seen by the device");
  StepBuffers& buffers = parts_.buffers;
  carry_sums(buffers.sums, ctx_.stream);
  communicator_.sum_on_device(buffers.sums, ctx_.stream).finish(ctx_.stream);
  decide_step(buffers.decision, buffers.sums, divisor, options_.max_grad_norm, ctx_.stream);
}

/// The host decides, and waits for the device here: if the sums go through MPI; if it makes the update; with fp16,
/// whose scale in the next step depends on this one; and if losses are compared with earlier ones (spike_z_score). The
/// device idles while this answer travels and the first kernel of the update is launched; meanwhile the next batch is
/// read, and the next forward pass is queued while the update runs.
void TrainingStep::sum_on_host() {
  ctx_.stream.synchronize();
  auto* integers = static_cast<int64_t*>(sums_.data());
  for (int64_t row = 0; row <= squares_row(); ++row) {
    const std::span<int64_t> place(integers + row * ExactSum::integer_count, ExactSum::integer_count);
    ExactSum sum;
    std::copy(place.begin(), place.end(), sum.limbs().begin());
    if (row == 0) sum.add(loss_);
    communicator_.sum(sum);
    std::copy(sum.limbs().begin(), sum.limbs().end(), place.begin());
  }
}

void TrainingStep::read_values(StepRecord& record, double divisor) const {
  const auto value = [&](int64_t row) {
    ExactSum sum;
    const auto* integers = static_cast<const int64_t*>(sums_.data()) + row * ExactSum::integer_count;
    std::copy_n(integers, ExactSum::integer_count, sum.limbs().begin());
    return sum.value();
  };
  const MetricSpec& loss = parts_.objective->metrics().front();
  record.loss = loss.factor * value(0) / static_cast<double>(std::max<int64_t>(record.tokens, 1));
  record.grad_norm = std::sqrt(value(squares_row())) / divisor;
}

void TrainingStep::finish_pending() {
  if (!pending_) return;
  auto [record, divisor, begin] = *std::exchange(pending_, std::nullopt);
  const ProfileSpan phase(SpanKind::phase, "log");
  if (!decided_.reached()) decided_.synchronize();
  read_values(record, divisor);
  const bool applies = check(record, record.step - 1);
  const auto& decision = *static_cast<const StepDecision*>(decision_.data());
  LLMTRAIN_CHECK(applies == (decision.applies != 0), "the host and the device disagree about an update");
  // The step time is the interval between the values of two steps, since the time to queue a step does not measure it.
  // All of that time that the host did not spend otherwise is attributed to passes.
  const double end = now(), seconds = end - std::max(begin, known_at_);
  known_at_ = end;
  record.phases = std::exchange(phases_, {});
  StepRecord::Phases& p = record.phases;
  p.forward_backward = seconds - p.data - p.reduction - p.optimizer;
  log(record, seconds);
}

void TrainingStep::update(const StepRecord& record, double scale) {
  before_update();
  const int64_t t = std::max<int64_t>(progress_.guard.updates(record.step) - progress_.scaler.skipped_steps(), 1);
  parts_.optimizer->update(parts_.params(),
                           {t, record.learning_rate, scale, device_decides() ? parts_.buffers.decision : Tensor{}},
                           ctx_.stream);
}

void TrainingStep::run_rounds() {
  const int64_t micro_batches = static_cast<int64_t>(plan_.micro_batches.size());
  const ReductionGroups& groups = parts_.groups;
  ParamStore& params = parts_.params();
  params.begin_step(groups.used(micro_batches));
  for (int64_t round = 0; round < params.rounds(); ++round) {
    const int64_t group = params.begin_round(round);
    const int64_t first = group < 0 ? 0 : groups.begin(group);
    const int64_t end = group < 0 ? 0 : std::min(groups.begin(group + 1), micro_batches);
    for (int64_t slot = 0; slot < groups.max_size(); ++slot) {
      params.begin_micro_batch(slot == 0, slot + 1 == groups.max_size());
      if (first + slot < end) {
        run_micro_batch();
      } else {
        run_idle_pass();
      }
    }
  }
}

void TrainingStep::run_idle_pass() {
  const ProfileSpan phase(SpanKind::phase, "idle pass");
  const double begin = now();
  Model& model = parts_.model();
  model.forward(ctx_, nullptr);
  if (parts_.objective->needs().statistics_first) model.score(ctx_, nullptr, {});
  model.score_and_differentiate(ctx_, nullptr, {}, {});
  model.backward(ctx_, nullptr);
  phases_.reduction += now() - begin;
}

void TrainingStep::run_micro_batch() {
  ProfileSpan phase(SpanKind::phase, "data");
  const double begin = now();
  note_progress();
  StepBuffers& buffers = parts_.buffers;
  const Batch batch = buffers.batch.upload(prefetcher_.take(), ctx_.stream);
  if (++next_local_ < local_micro_batches_.size()) {
    prefetcher_.request(plan_.micro_batches[static_cast<size_t>(local_micro_batches_[next_local_])]);
  }
  const double loaded = now();
  const TokenStatistics statistics{
      first_rows(buffers.statistics.logp, batch.tokens), first_rows(buffers.statistics.lse, batch.tokens), {}, {}};
  const TokenCotangents cotangents{first_rows(buffers.cotangents.logp, batch.tokens), {}, {}};
  const Objective& objective = *parts_.objective;
  Model& model = parts_.model();
  graphs_.run(batch, ctx_.stream, [&] {
    phase.next("forward");
    model.forward(ctx_, &batch);
    phase.next("head");
    if (objective.needs().statistics_first) model.score(ctx_, &batch, statistics);
    objective.cotangents(batch, statistics, cotangents, buffers.cotangent_scale, ctx_.stream);
    model.score_and_differentiate(ctx_, &batch, statistics, cotangents);
    objective.add_sums(batch, statistics, buffers.sums, ctx_.stream);
    phase.next("backward");
    model.backward(ctx_, &batch);
  });
  phases_.data += loaded - begin;
  phases_.forward_backward += now() - loaded;
}

}  // namespace llmtrain
