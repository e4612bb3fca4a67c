#include "train/step_passes.hpp"

#include <algorithm>

#include "core/activity.hpp"
#include "core/profile.hpp"
#include "evaluation/evaluate.hpp"
#include "kernels/elementwise.hpp"
#include "train/step_hook.hpp"

namespace llmtrain {

namespace {

double seconds_waited() { return 1e-9 * static_cast<double>(activity().collective.waited.load()); }

}  // namespace

StepPasses::StepPasses(TrainingPlan& plan, SharedRows& rows, Stream& stream, uint64_t seed,
                       const std::string& no_graphs)
    : plan_(plan),
      rows_(rows),
      device_step_(Graph::available() && no_graphs.empty() ? static_cast<int64_t>(sizeof(int64_t)) : 0),
      ctx_{plan.params(), plan.arena, stream, seed},
      prefetcher_(plan.batches()),
      graphs_(Graph::available() && no_graphs.empty() && !plan.objective->needs().documents, plan.params()) {
  ctx_.device_step = static_cast<const int64_t*>(device_step_.data());
  ctx_.role = plan.objective->product_role();
  if (plan.rows.blocks > 1) ctx_.role = ProductRole::prefill;  // the bits of a row do not depend on the other rows
  ctx_.temperature = plan.batches().temperature();
  ctx_.rows = &rows;
}

bool StepPasses::prepare(int64_t data_step) {
  if (!plan_.batches().is_prepared(data_step)) return false;
  plan_.batches().plan(data_step, step_);
  count_ = plan_.objective->count(step_);
  local_micro_batches_.clear();
  next_local_ = 0;
  const GradientReducer& reducer = plan_.params().reducer();
  const GroupSchedule groups = schedule();
  for (int64_t round = 0; round < groups.rounds(); ++round) add_local(reducer.own_group(groups, round));
  request_first();
  return true;
}

GroupSchedule StepPasses::schedule() const {
  return plan_.params().reducer().schedule(plan_.groups.used(std::ssize(step_.micro_batches)) * plan_.rows.blocks);
}

StepPasses::Range StepPasses::micro_batches_of(int64_t row_group) const {
  if (row_group < 0) return {0, 0};
  const int64_t group = row_group / plan_.rows.blocks;
  return {plan_.groups.begin(group), std::min(plan_.groups.begin(group + 1), std::ssize(step_.micro_batches))};
}

void StepPasses::add_local(int64_t row_group) {
  const auto [first, end] = micro_batches_of(row_group);
  for (int64_t index = first; index < end; ++index) local_micro_batches_.push_back(index);
}

void StepPasses::request_first() {
  if (local_micro_batches_.empty()) return;
  prefetcher_.request(step_.micro_batches[static_cast<size_t>(local_micro_batches_.front())]);
}

int64_t StepPasses::processed() const {
  if (!plan_.objective->needs().documents) return 0;
  int64_t rows = 0;
  for (const MicroBatchPlan& micro : step_.micro_batches) rows += micro.rows;
  return rows;
}

void StepPasses::discard() {
  if (next_local_ < local_micro_batches_.size()) prefetcher_.take();
  local_micro_batches_.clear();
}

void StepPasses::set_step(int64_t step) {
  ctx_.step = step;
  if (ctx_.device_step == nullptr) return;
  fill_integer(Tensor(device_step_.data(), DType::i64, {1}), step, ctx_.stream);
}

void StepPasses::run(int64_t step, double scale, PhaseClock& clock, int64_t hashed) {
  set_step(step);
  ctx_.training = true;
  own_ = {};
  const int64_t micro_batches = static_cast<int64_t>(step_.micro_batches.size());
  // Objectives are sums over what they count, and losses of routers means.
  if (plan_.router) {
    const double sign = plan_.objective->metrics().front().factor < 0 ? -1 : 1;
    plan_.router->begin_step(static_cast<double>(count_) / static_cast<double>(std::max<int64_t>(micro_batches, 1)),
                             scale, sign);
  }
  GradientReducer& reducer = plan_.params().reducer();
  if (plan_.objective->needs().step_statistics) {
    const ProfileSpan phase(SpanKind::phase, "statistics");
    score_step({plan_.model(), ctx_, plan_.evaluation_buffers(), DataPart::train, rows_.mesh()}, plan_.train, step_,
               *plan_.objective);
  }
  if (plan_.teacher) plan_.teacher->begin_step(micro_batches > 0 && step_.micro_batches.front().written);
  reducer.begin_step(schedule().groups);
  reducer.hash_round(hashed);
  for (int64_t round = 0; round < reducer.rounds(); ++round) run_round(reducer.begin_round(round), clock);
}

void StepPasses::run_round(int64_t row_group, PhaseClock& clock) {
  const auto [first, end] = micro_batches_of(row_group);
  const int64_t slots = plan_.groups.max_size();
  for (int64_t slot = 0; slot < slots; ++slot) {
    plan_.params().reducer().begin_micro_batch(slot == 0, slot + 1 == slots);
    if (first + slot < end) {
      run_micro_batch(clock);
    } else {
      run_idle_pass(clock);
    }
  }
}

uint64_t StepPasses::replay(int64_t rank, PhaseClock& clock) {
  const ProfileSpan phase(SpanKind::phase, "replay");
  GradientReducer& reducer = plan_.params().reducer();
  replays_ = true;
  const int64_t row_group = reducer.begin_replay(rank);
  local_micro_batches_.clear();
  next_local_ = 0;
  add_local(row_group);
  request_first();
  run_round(row_group, clock);
  reducer.end_replay();
  replays_ = false;
  return reducer.hash();
}

void StepPasses::run_idle_pass(PhaseClock& clock) {
  const ProfileSpan phase(SpanKind::phase, "idle pass");
  clock.start_lap();
  Model& model = plan_.model();
  if (plan_.reference) plan_.reference->run_idle(ctx_);
  if (plan_.teacher) plan_.teacher->begin_idle(ctx_);
  model.forward(ctx_, nullptr);
  if (plan_.objective->needs().statistics_first) model.score(ctx_, nullptr, {});
  differentiate(nullptr, {}, {});
  model.backward(ctx_, nullptr);
  clock.lap(&StepRecord::Phases::reduction);
}

void StepPasses::differentiate(const Batch* rows, const TokenStatistics& statistics,
                               const TokenCotangents& cotangents) {
  const auto run = [&] { plan_.model().score_and_differentiate(ctx_, rows, statistics, cotangents); };
  if (plan_.teacher) return plan_.teacher->teach(ctx_, run);
  run();
}

/// The objective sees all rows of a micro-batch on each of the ranks that share them, one of which counts it.
void StepPasses::run_passes(ProfileSpan& phase, const Batch& batch, const Batch& rows,
                            const TokenStatistics& statistics, const TokenCotangents& cotangents) {
  Objective& objective = *plan_.objective;
  Model& model = plan_.model();
  const Tensor sums = plan_.buffers.sums.of_objective(), &scale = plan_.buffers.cotangent_scale;
  const TokenStatistics own = rows_.own(statistics);
  const bool leads = rows_.mesh().leads() && !replays_, first = objective.needs().statistics_first;
  phase.next("forward");
  forward(batch, rows);
  phase.next("head");
  if (first) {
    model.score(ctx_, &rows, own);
    rows_.gather(statistics, ctx_.stream);
  }
  if (first && leads) {
    objective.cotangents_and_sums(batch, statistics, cotangents, scale, sums, ctx_.stream);
  } else {
    objective.cotangents(batch, statistics, cotangents, scale, ctx_.stream);
  }
  differentiate(&rows, own, rows_.own(cotangents));
  if (!first) {
    rows_.gather(statistics, ctx_.stream);
    if (leads) objective.add_sums(batch, statistics, sums, ctx_.stream);
  }
  phase.next("backward");
  model.backward(ctx_, &rows);
  ctx_.router = nullptr;
}

void StepPasses::forward(const Batch& batch, const Batch& rows) {
  if (!plan_.router) return plan_.model().forward(ctx_, &rows);
  ctx_.router = &*plan_.router;
  plan_.router->begin_pass(ctx_.stream);
  plan_.model().forward(ctx_, &rows);
  plan_.router->end_pass(batch.tokens - batch.padding, &rows_, ctx_.stream, !replays_);
}

void StepPasses::run_micro_batch(PhaseClock& clock) {
  ProfileSpan phase(SpanKind::phase, "data");
  clock.start_lap();
  const double waited = seconds_waited();
  report_progress();
  if (pass_hook != nullptr) pass_hook(rows_.mesh().job().rank());
  StepBuffers& buffers = plan_.buffers;
  const HostBatch& host = prefetcher_.take();
  Batch batch = buffers.batch.upload(host, ctx_.stream);
  if (++next_local_ < local_micro_batches_.size()) {
    prefetcher_.request(step_.micro_batches[static_cast<size_t>(local_micro_batches_[next_local_])]);
  }
  const double loading = clock.lap(&StepRecord::Phases::data);
  const TokenStatistics statistics = buffers.statistics.rows(0, batch.tokens);
  const TokenCotangents cotangents = buffers.cotangents.rows(0, batch.tokens);
  if (plan_.reference) {
    phase.next("reference");
    documents_ = host.documents;
    batch.documents = &documents_;
    plan_.reference->score(ctx_, batch, statistics.logp, buffers.documents, documents_, DataPart::train);
  }
  const Batch rows = rows_.choose(batch);
  if (plan_.teacher) {
    phase.next("teacher");
    plan_.teacher->begin(ctx_, &rows, host, rows_.first_row());
  }
  graphs_.run(batch, ctx_.stream, [&] { run_passes(phase, batch, rows, statistics, cotangents); });
  const double computing = clock.lap(&StepRecord::Phases::forward_backward) - (seconds_waited() - waited);
  if (replays_) return;
  // The host does not see how long a GPU computes.
  own_.seconds += device_memory_is_host() ? loading + computing : loading;
  own_.tokens += rows.tokens;
}

}  // namespace llmtrain
