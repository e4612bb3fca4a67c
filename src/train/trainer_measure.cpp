// The part of the trainer that predicts how long it will take.

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "core/clock.hpp"
#include "train/evaluate.hpp"
#include "train/trainer_run.hpp"

namespace llmtrain {

namespace {

constexpr int64_t warm_steps = 2;  ///< make kernels and touch buffers
constexpr int64_t min_steps = 5;
constexpr double enough_seconds = 3;

/// The slowest rank's, the same on all.
double agreed(Communicator& communicator, double seconds) {
  std::array<int64_t, 1> nanoseconds = {static_cast<int64_t>(seconds * 1e9)};
  communicator.maximum(nanoseconds);
  return static_cast<double>(nanoseconds[0]) * 1e-9;
}

/// call(i) for i from 0 until there are enough; seconds of one, and how many.
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

}  // namespace

Prediction Trainer::measure(Runtime& runtime) {
  Communicator& communicator = runtime.communicator();
  RunLogOptions silent;
  silent.active = false;
  RunLog log(silent);
  StopMonitor stop_monitor(config_, "", false);
  Run run(*this, runtime, log, stop_monitor);
  start(run, nullptr);
  params_.initialize(static_cast<uint64_t>(config_.run.seed));

  Prediction time;
  time.steps = total_steps_;
  prepare(run, 0);
  double tokens = 0;  // as the run's own speed counts them: targets
  const auto one_step = [&](int64_t i) {
    tokens += static_cast<double>(run.plan.trained_tokens);
    step(run, i % total_steps_);
    finish_pending_step(run);
    if ((i + 1) % total_steps_ == 0) prepare(run, 0);
  };
  for (int64_t i = 0; i < warm_steps; ++i) one_step(i);
  tokens = 0;
  std::tie(time.step, time.measured) =
      timed(communicator, int64_t{1} << 20, [&](int64_t i) { one_step(warm_steps + i); });
  time.tokens_per_step = tokens / static_cast<double>(time.measured);

  if (!validation_) return time;
  const int64_t at_start = config_.evaluation.at_start ? 1 : 0;
  time.evaluations = at_start + evaluations_from(config_.evaluation, 0, total_steps_);
  if (time.evaluations == 0) return time;
  const int64_t batches = first_steps(config_.evaluation, *validation_);
  Context ctx{params_, arena_, run.ctx.stream, run.ctx.seed, 0, false};
  const EvaluationBuffers buffers{batch_, {statistics_.logp, {}, {}, statistics_.argmax}};
  const int64_t piece = std::min(batches, 4 * static_cast<int64_t>(communicator.size()));
  const auto some = [&](int64_t) {
    llmtrain::evaluate(*model_, ctx, *validation_, piece, buffers, communicator, [] { return false; });
  };
  some(0);
  time.evaluation =
      timed(communicator, min_steps, some).first * static_cast<double>(batches) / static_cast<double>(piece);
  return time;
}

}  // namespace llmtrain
