#include "train/rollback.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
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

void throw_replay_error(const RunContext& run, RunCheckpoints& checkpoints, const ReplayFindings& findings,
                        int64_t completed, const std::string& directory) {
  const SectionScope section(Section::saving);
  std::map<std::string, std::vector<int>> ranks_of_hosts;
  for (size_t i = 0; i < findings.ranks.size(); ++i) ranks_of_hosts[findings.hosts[i]].push_back(findings.ranks[i]);
  std::vector<std::string> hosts;
  std::vector<NodeNotice> notices;
  for (const auto& [host, ranks] : ranks_of_hosts) {
    hosts.push_back(host);
    NodeNotice& notice = notices.emplace_back();
    notice.step = completed + 1;
    notice.host = host;
    notice.ranks = ranks;
    notice.replay = findings.decided ? NodeNotice::Replay::wrong : NodeNotice::Replay::doubtful;
    run.log.notice(notice);
  }
  on_root(run.runtime.communicator(), [&] {
    if (findings.decided) exclude_nodes(directory, hosts);
  });
  checkpoints.set_suspects_aside(notices);
  const int64_t trusted = checkpoints.trusted_step();
  const std::string what =
      findings.decided
          ? fmt::format(
                "the gradients of rank{} {} on {} differ from those that two others computed of the same data: "
                "its processor or memory is not reliable. It is in {}/excluded_nodes, and jobs/train.sbatch "
                "leaves it out",
                findings.ranks.size() == 1 ? "" : "s", fmt::join(findings.ranks, ", "), fmt::join(hosts, ", "),
                directory)
          : fmt::format(
                "ranks {} on {} computed different gradients of the same data, and no majority tells which are "
                "wrong. Leave out one of the nodes, or compare them with others",
                fmt::join(findings.ranks, ", "), fmt::join(hosts, ", "));
  throw UserError(
      findings.decided ? ExitCode::peer_failed : ExitCode::bad_content,
      fmt::format("step {}: {}. Later checkpoints than the last replay vouches for are in {}/{}; the same command {}",
                  completed + 1, what, directory, suspects_folder_name,
                  trusted >= 0 ? fmt::format("resumes from step {}", trusted) : std::string("begins anew")));
}

}  // namespace llmtrain
