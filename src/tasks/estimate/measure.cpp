#include "tasks/estimate/measure.hpp"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>

#include "core/clock.hpp"
#include "core/error.hpp"
#include "evaluation/evaluate.hpp"
#include "params/planned_memory.hpp"
#include "rollout/scoring.hpp"

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

}  // namespace

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

}  // namespace llmtrain
