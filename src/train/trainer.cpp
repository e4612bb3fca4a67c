#include "train/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <tuple>
#include <utility>

#include "core/clock.hpp"
#include "core/machine.hpp"
#include "params/offload_file.hpp"
#include "params/planned_memory.hpp"
#include "train/evaluate.hpp"
#include "train/training_loop.hpp"

namespace llmtrain {

namespace {

constexpr int64_t warm_steps = 2;  ///< select kernels and touch buffers
constexpr int64_t min_steps = 5;
constexpr double enough_seconds = 3;

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

void Trainer::reserve_disk(Communicator& communicator) {
  if (!config_.parallel.uses_disk()) return;
  // The ranks of a node share its disk: they report one error, with the sum.
  const std::string host = host_name(), own = fmt::format("{} {}", plan_.params().offloaded_bytes(), host);
  int64_t of_node = 0;
  for (const std::string& other : communicator.gather_all(own)) {
    std::istringstream text(other);
    int64_t bytes = 0;
    std::string where;
    text >> bytes >> where;
    if (where == host) of_node += bytes;
  }
  const std::string& folder = config_.parallel.offload_path;
  const std::string place =
      config_.provenance.where("parallel.offload_path") + (communicator.node_count() > 1 ? " on " + host : "");
  throw_on_all_ranks(communicator, [&] { check_offload_folder(folder, of_node, place); });
  throw_on_all_ranks(communicator, [&] {
    try {
      plan_.params().reserve_disk();
    } catch (const UserError& error) {  // failures that could not be checked before
      throw UserError(error.code(), place + ": " + error.what());
    }
  });
}

Trainer::Ended Trainer::train(Runtime& runtime, RunLog& log, StopMonitor& stop_monitor, const ResumePoint* from,
                              std::vector<NamedContent> contents) {
  TrainingLoop loop(config_, plan_, runtime, log, stop_monitor, from, std::move(contents));
  const int64_t stop = loop.run();
  steps_done_ = loop.completed();
  return stop != 0 ? Ended::stopped : Ended::finished;
}

Prediction Trainer::measure(Runtime& runtime) {
  Communicator& communicator = runtime.communicator();
  RunLogOptions silent;
  silent.active = false;
  RunLog log(silent);
  const PlannedMemory memory(plan_.arena, communicator);
  RunProgress progress(config_);
  ParameterHash hash(plan_.params(), communicator, runtime.stream());
  TrainingStep step(plan_, progress, runtime, log, step_options(config_, plan_));
  step.before_update = [] {};
  step.hash_if_due = [&](int64_t completed) {
    return is_hashed(config_, completed) ? std::optional(hash.after(completed)) : std::nullopt;
  };
  plan_.models.start(communicator, runtime.stream());
  plan_.params().initialize(static_cast<uint64_t>(config_.run.seed));

  Prediction time;
  const int64_t total = time.steps = plan_.total_steps;
  step.prepare(0);
  double tokens = 0;  // targets, which the run's speed counts
  const auto one_step = [&](int64_t i) {
    tokens += static_cast<double>(step.prepared_count());
    step.run(i % total);
    step.finish_pending();
    if ((i + 1) % total == 0) step.prepare(0);
  };
  for (int64_t i = 0; i < warm_steps; ++i) one_step(i);
  tokens = 0;
  std::tie(time.step, time.measured) =
      timed(communicator, int64_t{1} << 20, [&](int64_t i) { one_step(warm_steps + i); });
  time.tokens_per_step = tokens / static_cast<double>(time.measured);

  if (!plan_.validation) return time;
  const int64_t at_start = config_.evaluation.at_start ? 1 : 0;
  time.evaluations = at_start + evaluations_from(config_.evaluation, 0, total);
  if (time.evaluations == 0) return time;
  const int64_t batches = first_steps(config_.evaluation, *plan_.validation);
  Context ctx{plan_.params(), plan_.arena, runtime.stream(), static_cast<uint64_t>(config_.run.seed), 0, false};
  const int64_t piece = std::min(batches, 4 * static_cast<int64_t>(communicator.size()));
  const auto some = [&](int64_t) {
    evaluate(plan_.model(), ctx, *plan_.objective, *plan_.validation, piece, plan_.evaluation_buffers(), communicator,
             [] { return false; });
  };
  some(0);
  time.evaluation =
      timed(communicator, min_steps, some).first * static_cast<double>(batches) / static_cast<double>(piece);
  return time;
}

}  // namespace llmtrain
