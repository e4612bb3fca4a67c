#include "train/rollback.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/checkpoint_reader.hpp"
#include "core/activity.hpp"
#include "core/clock.hpp"
#include "train/run/resume.hpp"

namespace llmtrain {
namespace {

constexpr const char* remedy =
    "Try a lower schedule.learning_rate, a longer warm-up, a lower optimizer.max_grad_norm or precision.compute = fp32";

[[noreturn]] void diverged(int64_t step, const std::string& what, const std::string& to_do) {
  throw UserError(ExitCode::diverged, fmt::format("step {}: {}. {}", step, what, to_do));
}

ResumePoint rollback_point(const DivergenceGuard& guard, const RunCheckpoints& checkpoints, int64_t completed,
                           Communicator& communicator, RunLog& log) {
  const int64_t target = guard.target();
  if (target < 0) {
    if (const std::string& start = checkpoints.start_path(); !start.empty()) {
      return {start, verify_checkpoint(start, communicator), false, {}, {}};
    }
    diverged(completed, guard.reason() + "; the update was not applied, and there is no checkpoint to roll back to",
             remedy);
  }
  const std::string folder = checkpoints.folder();
  const std::string path = folder + "/" + checkpoint_name(target);
  try {
    return {path, verify_checkpoint(path, communicator), true, {}, {}};
  } catch (const UserError& error) {  // the error is the same on all ranks
    log.warn(fmt::format("the checkpoint of step {} cannot be used: {}", target, error.what()));
  }
  std::optional<FoundCheckpoint> found = find_checkpoint(folder, communicator);
  if (!found) diverged(completed, guard.reason() + ", and its checkpoints are gone", remedy);
  return {found->path, std::move(found->manifest), true, {}, {}};
}

}  // namespace

int64_t roll_back(const RunContext& run, RunCheckpoints& checkpoints, TrainingStep& step, int64_t completed,
                  const std::string& directory) {
  Communicator& communicator = run.runtime.communicator();
  DivergenceGuard& guard = run.progress.guard;
  const DivergenceGuard before = guard;
  if (!before.may_roll_back() && (before.target() >= 0 || !checkpoints.start_path().empty())) {
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
  checkpoints.finish();
  step.discard();
  const ResumePoint point = rollback_point(before, checkpoints, completed, communicator, run.log);
  const int64_t target = checkpoints.restore(point);
  const DivergenceGuard::Range left_out = guard.roll_back(before, target, checkpoints.best_saved());
  checkpoints.discard_after(target);
  const RollbackRecord record{target, completed, left_out.first, left_out.last, before.reason()};
  throw_on_all_ranks(communicator, [&] {
    const std::string note = communicator.rank() == 0 ? cut_metrics(directory, point.manifest) : std::string();
    if (!note.empty()) run.log.warn(note);
    run.log.roll_back(record, log_state(point.manifest));
  });
  // Saves at once, so that a resumed run skips the same data.
  checkpoints.save(target, now());
  checkpoints.finish();
  return target;
}

}  // namespace llmtrain
