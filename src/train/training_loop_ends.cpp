// The part of the training loop that rolls back after divergence, and that delivers the final weights.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "checkpoint/checkpoint_folder.hpp"
#include "checkpoint/checkpoint_reader.hpp"
#include "core/activity.hpp"
#include "core/clock.hpp"
#include "hf/export.hpp"
#include "text/files/tokenizer_files.hpp"
#include "train/run/resume.hpp"
#include "train/run/run_directory.hpp"
#include "train/training_loop.hpp"

namespace llmtrain {
namespace {

constexpr const char* remedy =
    "Try a lower schedule.learning_rate, a longer warm-up, a lower optimizer.max_grad_norm or precision.compute = fp32";

[[noreturn]] void diverged(int64_t step, const std::string& what, const std::string& to_do) {
  throw UserError(ExitCode::diverged, fmt::format("step {}: {}. {}", step, what, to_do));
}

struct Parameters : StoreState {
  using StoreState::StoreState;
  bool wants(StateKind kind) const override { return kind == StateKind::master; }
};

}  // namespace

ResumePoint TrainingLoop::rollback_point() {
  Communicator& communicator = runtime_.communicator();
  const DivergenceGuard& guard = progress_.guard;
  const int64_t target = guard.target();
  if (target < 0) {
    if (const std::string& start = checkpoints_->start_path(); !start.empty()) {
      return {start, verify_checkpoint(start, communicator), false, {}, {}};
    }
    diverged(completed_, guard.reason() + "; the update was not applied, and there is no checkpoint to roll back to",
             remedy);
  }
  const std::string folder = checkpoints_->folder();
  const std::string path = folder + "/" + checkpoint_name(target);
  try {
    return {path, verify_checkpoint(path, communicator), true, {}, {}};
  } catch (const UserError& error) {  // the error is the same on all ranks
    log_.warn(fmt::format("the checkpoint of step {} cannot be used: {}", target, error.what()));
  }
  std::optional<FoundCheckpoint> found = find_checkpoint(folder, communicator);
  if (!found) diverged(completed_, guard.reason() + ", and its checkpoints are gone", remedy);
  return {found->path, std::move(found->manifest), true, {}, {}};
}

void TrainingLoop::roll_back() {
  const DivergenceGuard before = progress_.guard;
  if (!before.may_roll_back() && (before.target() >= 0 || !checkpoints_->start_path().empty())) {
    diverged(completed_,
             before.rollbacks() == 0
                 ? before.reason()
                 : fmt::format("{}, {} time{} after the run had rolled back to a checkpoint and skipped data "
                               "(divergence.max_rollbacks)",
                               before.reason(), before.rollbacks(), before.rollbacks() == 1 ? "" : "s"),
             fmt::format("{}; after such a change the same command resumes from step {}", remedy,
                         std::max<int64_t>(before.target(), 0)));
  }
  const SectionScope section(Section::resuming);
  checkpoints_->finish();
  step_.discard();
  const ResumePoint point = rollback_point();
  const int64_t step = checkpoints_->restore(point);
  const DivergenceGuard::Range left_out = progress_.guard.roll_back(before, step, checkpoints_->best_saved());
  checkpoints_->discard_after(step);
  const RollbackRecord record{step, completed_, left_out.first, left_out.last, before.reason()};
  throw_on_all_ranks(runtime_.communicator(), [&] {
    if (runtime_.communicator().rank() == 0) cut_metrics(RunDirectory::path_of(config_), point.manifest);
    log_.roll_back(record, log_state(point.manifest));
  });
  // Saves at once, so that a resumed run skips the same data.
  checkpoints_->save(step, now());
  checkpoints_->finish();
  if (step < plan_.total_steps) step_.prepare(step);
  completed_ = step;
}

/// Loads the best weights from their checkpoint, which exists since every improvement is saved at once and kept. The
/// moments remain those of the last step.
void TrainingLoop::load_best() {
  const int64_t saved = checkpoints_->best_saved(), best = progress_.best.step();
  if (saved != best) {  // evaluated before the deck requested the best
    log_.warn(fmt::format(
        "the best evaluation, after step {}, has no checkpoint: {}", best,
        saved < 0 ? "the last weights are used instead" : fmt::format("that of step {} is used instead", saved)));
  }
  if (saved < 0 || saved == completed_) return;
  const SectionScope section(Section::resuming);
  Communicator& communicator = runtime_.communicator();
  const std::string path = checkpoints_->folder() + "/" + checkpoint_name(saved);
  Manifest manifest;
  try {
    manifest = verify_checkpoint(path, communicator);
  } catch (const UserError& error) {  // the error is the same on all ranks
    if (error.code() == ExitCode::stopped) throw;
    if (checkpoints_->saved_step() != completed_) {  // if checkpoint.at_end is false
      checkpoints_->save(completed_, now());
      checkpoints_->finish();
    }
    throw UserError(error.code(),
                    fmt::format("the best checkpoint, of step {}, cannot be read:\n{}\nThe run itself is complete, and "
                                "saved as {}. Restore the best checkpoint, or use the last weights with "
                                "checkpoint.export=last evaluation.load_best_at_end=false; then submit again",
                                saved, error.what(), checkpoint_name(completed_)));
  }
  std::vector<float> buffer(size_t{1} << 18);
  Parameters parameters(plan_.params(), runtime_.stream());
  load_checkpoint(path, manifest, parameters, buffer, communicator);
  log_.print(fmt::format("weights    of the best evaluation, after step {} ({})", saved,
                         name_of(config_.checkpoint.best_metric)));
}

void TrainingLoop::export_weights() {
  const SectionScope section(Section::exporting);
  const CheckpointConfig& checkpoint = config_.checkpoint;
  RoleModel& policy = plan_.models.at(Role::policy);
  ExportOptions options;
  options.output = RunDirectory::path_of(config_) + "/export";
  options.overwrite = true;
  options.type = weight_type_of(name_of(checkpoint.export_dtype));
  options.file_bytes = checkpoint.export_file_size;
  options.texts = texts_;
  throw_on_all_ranks(runtime_.communicator(), [&] {
    const bool writes = runtime_.communicator().rank() == 0 && plan_.tokenizer != nullptr;
    if (!writes) return;
    const std::string warning = carry_tokenizer(options, *plan_.tokenizer, config_.data.tokenizer);
    if (!warning.empty()) log_.warn(warning);
  });
  export_model(options, policy.shape(), policy.params(), runtime_.communicator());
  log_.print("exported   " + options.output);
}

}  // namespace llmtrain
