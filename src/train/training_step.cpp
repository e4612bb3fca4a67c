#include "train/training_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/activity.hpp"
#include "core/clock.hpp"
#include "core/profile.hpp"
#include "kernels/elementwise.hpp"
#include "optim/schedule.hpp"
#include "train/step_hook.hpp"

namespace llmtrain {

TrainingStep::TrainingStep(const RunContext& run, StepOptions options)
    : plan_(run.plan),
      progress_(run.progress),
      communicator_(run.runtime.communicator()),
      stream_(run.runtime.stream()),
      log_(run.log),
      options_(std::move(options)),
      passes_(plan_, communicator_, stream_, options_.seed, options_.no_graphs),
      values_(plan_.buffers.sums, *plan_.objective, communicator_, stream_) {}

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

bool TrainingStep::run(int64_t n) {
  const SectionScope section(Section::step);
  const ProfileSpan whole(SpanKind::phase, "step");
  activity().step = n + 1;
  const double begin = now();
  StepRecord record = begin_record(n);
  StepBuffers& buffers = plan_.buffers;
  ParamStore& params = plan_.params();
  loss_.clear();
  const double count = static_cast<double>(std::max<int64_t>(record.tokens, 1));
  if (!buffers.cotangent_scale.empty()) fill(buffers.cotangent_scale, progress_.scaler.cotangent(count), stream_);
  values_.clear();
  if (!pending_) phases_ = {};

  passes_.run(n, phases_);
  record.own = passes_.own();
  prepared_ = false;
  const int64_t data_step = progress_.guard.data_step(n);
  if (n + 1 < plan_.total_steps) prepare(n + 1);
  const double reduced = now();
  ProfileSpan phase(SpanKind::phase, "reduction");
  params.finish_gradients();
  if (step_hook != nullptr)
    step_hook({n, data_step, communicator_.rank(), params, loss_, record.learning_rate, stream_});
  const double divisor = progress_.scaler.divisor(count);
  sum_gradient_squares(buffers.sums.of_gradients(), params, stream_);
  // Sums over all ranks determine whether the update of a step takes place, and the factor that clips its gradients. If
  // the device adds them and decides, the host queues the update, and the next step's passes, in advance: the device
  // never waits for the host. The host reads, checks and logs the values of a step after it has queued the passes of
  // the next one. If they cause a rollback, that next step is discarded.
  const bool by_device = values_.device_decides();
  if (by_device) {
    const std::span<const int64_t> host = loss_.limbs();
    LLMTRAIN_CHECK(std::all_of(host.begin(), host.end(), [](int64_t limb) { return limb == 0; }),
                   "what a hook adds to the loss is not seen by the device");
    values_.decide_on_device(divisor, options_.max_grad_norm);
  }
  const double queued = now();
  phases_.reduction += queued - reduced;
  finish_pending();  // the step before, while the device works on this one
  if (progress_.guard.must_roll_back()) return false;
  const double previous_finished = now();
  values_.fetch();
  // The host decides, and waits for the device here: if the sums go through MPI; if it makes the update; with fp16,
  // whose scale in the next step depends on this one; and if losses are compared with earlier ones (spike_z_score). The
  // device idles while this answer travels and the first kernel of the update is launched; meanwhile the next batch is
  // read, and the next forward pass is queued while the update runs.
  if (!by_device) {
    values_.sum_on_host(loss_);
    read_values(record, divisor);
  }
  const double decided = now();
  phase.next("update");
  phases_.reduction += decided - previous_finished;
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
  log_.step(record, values_of_ranks ? values_of_ranks(record) : SystemRecord{});
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
}

void TrainingStep::finish_pending() {
  if (!pending_) return;
  auto [record, divisor, begin] = *std::exchange(pending_, std::nullopt);
  const ProfileSpan phase(SpanKind::phase, "log");
  values_.wait();
  read_values(record, divisor);
  const bool applies = check(record, record.step - 1);
  LLMTRAIN_CHECK(applies == values_.applies(), "the host and the device disagree about an update");
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
  plan_.optimizer->update(plan_.params(),
                          {t, record.learning_rate, scale,
                           values_.device_decides() ? plan_.buffers.sums.decision : Tensor{}, &communicator_},
                          stream_);
}

}  // namespace llmtrain
