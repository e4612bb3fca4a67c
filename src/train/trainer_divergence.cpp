// The part of the trainer that rolls back to a checkpoint after divergence.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/checkpoint_reader.hpp"
#include "core/activity.hpp"
#include "core/clock.hpp"
#include "kernels/reduce.hpp"
#include "train/run/resume.hpp"
#include "train/run/run_directory.hpp"
#include "train/trainer_run.hpp"

namespace llmtrain {
namespace {

constexpr const char* remedy =
    "Try a lower schedule.learning_rate, a longer warm-up, a lower optimizer.max_grad_norm or precision.compute = fp32";

[[noreturn]] void diverged(int64_t step, const std::string& what, const std::string& to_do) {
  throw UserError(ExitCode::diverged, fmt::format("step {}: {}. {}", step, what, to_do));
}

}  // namespace

bool Trainer::state_is_finite(Run& run) {
  ExactSum squares;
  for (ParamStore::StatePass pass(params_, ParamStore::Access::all); pass.next();) {
    const ParamStore::Shard& shard = pass.shard();
    const UnitRange own = shard.part_of(params_.owned(pass.unit()));
    if (own.begin >= own.end) continue;
    for (const Tensor* part : {&shard.master, &shard.m, &shard.v}) {
      sum_of_squares(squares, part->rows(own.begin - shard.begin, own.end - own.begin), run.ctx.stream);
    }
  }
  run.runtime.communicator().sum(squares);
  return std::isfinite(squares.value());
}

ResumePoint Trainer::rollback_point(Run& run, int64_t completed) {
  Communicator& communicator = run.runtime.communicator();
  const int64_t target = run.guard.target();
  if (target < 0) {
    if (!run.start_path.empty()) {
      return {run.start_path, verify_checkpoint(run.start_path, communicator), false, {}, {}};
    }
    diverged(completed, run.guard.reason() + "; the update was not applied, and there is no checkpoint to roll back to",
             remedy);
  }
  const std::string folder = RunDirectory::path_of(config_) + "/checkpoints";
  const std::string path = folder + "/" + checkpoint_name(target);
  try {
    return {path, verify_checkpoint(path, communicator), true, {}, {}};
  } catch (const UserError& error) {  // the error is the same on all ranks
    run.log.warn(fmt::format("the checkpoint of step {} cannot be used: {}", target, error.what()));
  }
  std::optional<FoundCheckpoint> found = find_checkpoint(folder, communicator);
  if (!found) diverged(completed, run.guard.reason() + ", and its checkpoints are gone", remedy);
  return {found->path, std::move(found->manifest), true, {}, {}};
}

int64_t Trainer::roll_back(Run& run, int64_t completed) {
  const DivergenceGuard before = run.guard;
  if (!before.may_roll_back() && (before.target() >= 0 || !run.start_path.empty())) {
    diverged(completed,
             before.rollbacks() == 0
                 ? before.reason()
                 : fmt::format("{}, {} time{} after the run had rolled back to a checkpoint and skipped data "
                               "(divergence.max_rollbacks)",
                               before.reason(), before.rollbacks(), before.rollbacks() == 1 ? "" : "s"),
             fmt::format("{}; after such a change the same command resumes from step {}", remedy,
                         std::max<int64_t>(before.target(), 0)));
  }
  const SectionScope section(Section::resuming);
  run.saver->finish();
  if (run.next_local < run.local_micro_batches.size()) run.prefetcher.take();  // the batch of the discarded step
  run.local_micro_batches.clear();
  const ResumePoint point = rollback_point(run, completed);
  const int64_t step = restore(run, point);
  const DivergenceGuard::Range left_out = run.guard.roll_back(before, step, run.best_saved);
  run.saver->discard_after(step);
  const RollbackRecord record{step, completed, left_out.first, left_out.last, before.reason()};
  throw_on_all_ranks(run.runtime.communicator(), [&] {
    if (run.runtime.communicator().rank() == 0) cut_metrics(RunDirectory::path_of(config_), point.manifest);
    run.log.roll_back(record, log_state(point.manifest));
  });
  // Saves at once, so that a resumed run skips the same data.
  save(run, step, now());
  run.saver->finish();
  if (step < total_steps_) prepare(run, step);
  return step;
}

}  // namespace llmtrain
