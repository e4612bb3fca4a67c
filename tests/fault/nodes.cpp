// Jobs of 16 ranks on pretended nodes: a rank is killed or hangs, or the disk is full, in a step or in a save. The run
// resumes on other ranks and nodes.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>

#include "fault/campaign.hpp"

namespace llmtrain::test {
namespace {

constexpr int job_ranks = 16;

/// Gradients are added along the tree, by node first; a checkpoint has a file a node.
std::string arguments_of(int64_t i) {
  return fmt::format(
      "run.max_steps=12 batch.global=16 batch.micro=1 parallel.reduction=tree checkpoint.files=node "
      "watchdog.lost_after=4s parallel.zero={}",
      i % 4);
}

struct Phase {
  const char* name;
  const char* calls;
  const char* path;  ///< null: a message, which has none
};
constexpr std::array<Phase, 3> phases = {{{"a step", "message", nullptr},
                                          {"a save", "create,write,truncate,sync", ".attempt-"},
                                          {"a removal", "rename,remove", ".deleting-"}}};

/// A fault of this kind at some call of a phase; `operations`: number of these calls in each rank.
Injection fault_at(Random& random, const Phase& phase, const std::vector<int64_t>& operations, const char* how) {
  std::vector<int> ranks;
  for (int rank = 0; rank < job_ranks; ++rank) {
    if (operations[static_cast<size_t>(rank)] > 0) ranks.push_back(rank);
  }
  const int rank = ranks.at(static_cast<size_t>(random_below(random, std::ssize(ranks))));
  // Not the last of them, whose number varies a little.
  const int64_t most = std::max<int64_t>(operations[static_cast<size_t>(rank)] * 3 / 4, 1);
  return {.how = how,
          .at = 1 + random_below(random, most),
          .rank = rank,
          .calls = phase.calls,
          .path = phase.path == nullptr ? "" : phase.path,
          .signal = SIGSTOP};
}

void expect_end(const std::string& how, const std::string& what, const Outcome& outcome, Score& score) {
  const bool right = how == "kill"     ? outcome.exit_code != 0
                     : how == "signal" ? outcome.exit_code == 76 && contains(outcome.output, "the process is stopped")
                                       : outcome.exit_code == 73 || outcome.exit_code == 74;
  if (!right) score.fail(fmt::format("{}: exit code {}:\n{}", what, outcome.exit_code, outcome.output));
}

}  // namespace

void many_nodes(int64_t count, Score& score) {
  Rig rig;
  Random random(10);
  constexpr std::array<int, 4> per_node = {4, 2, 8, 5};
  constexpr std::array<const char*, 3> ways = {"kill", "signal", "full"};
  double slowest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const char* how = ways[static_cast<size_t>(i % 3)];
    const std::string arguments = arguments_of(i);
    rig.ranks_per_node = per_node[static_cast<size_t>(i % 4)];
    const bool full = std::string(how) == "full";
    const Phase& phase = phases[full ? 1 : static_cast<size_t>(random_below(random, std::ssize(phases)))];
    const std::vector<int64_t> operations =
        rig.counted(job_ranks, arguments, {.calls = phase.calls, .path = phase.path == nullptr ? "" : phase.path});
    const Injection fault = fault_at(random, phase, operations, how);
    const double begin = now();
    const Outcome outcome = rig.run("hit", job_ranks, arguments, fault);
    slowest = std::max(slowest, now() - begin);
    score.count(fmt::format("{} in {}", how == std::string("signal") ? "hang" : how, phase.name));
    const std::string what = fmt::format("{} at {} of {} in rank {} of 16, {} a node, {}", how, fault.at, phase.name,
                                         fault.rank, rig.ranks_per_node, arguments);
    expect_end(how, what, outcome, score);
    rig.expect_nothing_runs("hit", what, score);
    rig.expect_whole_checkpoints("hit", what, score);
    constexpr std::array<int, 5> others = {16, 1, 6, 3, 4};
    rig.ranks_per_node = per_node[static_cast<size_t>((i + 1) % 4)];
    rig.expect_recovery("hit", others[static_cast<size_t>(i % 5)], arguments, what, score);
  }
  score.note = fmt::format(
      "nodes of 2, 4, 5 and 8 ranks, ZeRO 0 to 3, the tree; resumed on 1 to 16 ranks and other "
      "nodes; the slowest job ended after {:.0f} s",
      slowest);
}

}  // namespace llmtrain::test
