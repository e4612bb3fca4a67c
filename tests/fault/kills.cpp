// Killed processes: at random moments, and at every single operation of one save.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "fault/campaign.hpp"

namespace llmtrain::test {
namespace {

constexpr int job_ranks = 4;
constexpr int64_t interval = 5;  // of the deck
const std::string at_once = "checkpoint.asynchronous=false";

/// Times of a kill.
struct Phase {
  const char* name;
  const char* calls;
  const char* path;
  std::vector<int64_t> operations = {};  ///< of each rank
};

std::array<Phase, 4> counted_phases(const Rig& rig) {
  std::array<Phase, 4> phases = {
      {{"write", "create,write,truncate,sync", ".attempt-"},
       {"publish", "create,write,sync,rename", "manifest.json:/checkpoints/step-:/latest$:/best$:.link-:/checkpoints$"},
       {"retention", "rename,remove", ".deleting-"},
       {"any operation", "", ""}}};
  for (Phase& phase : phases) {
    phase.operations = rig.counted(job_ranks, "", {.how = "count", .calls = phase.calls, .path = phase.path});
  }
  return phases;
}

/// Forty percent in writes, twenty percent each in publishing and retention, ten percent each anywhere in the run and
/// at any time.
Injection draw(Random& random, const std::array<Phase, 4>& phases, int64_t i, std::string& name) {
  constexpr std::array<int, 10> plan = {0, 0, 0, 0, 1, 1, 2, 2, 3, 4};
  const int chosen = plan[static_cast<size_t>(i % 10)];
  if (chosen == 4) {
    name = "any time";
    const bool all = random_below(random, 2) == 0;
    return {.how = "later",
            .rank = all ? -1 : static_cast<int>(random_below(random, job_ranks)),
            .milliseconds = 100 + random_below(random, 1500)};
  }
  const Phase& phase = phases[static_cast<size_t>(chosen)];
  name = phase.name;
  std::vector<int> ranks;
  for (int rank = 0; rank < job_ranks; ++rank) {
    if (phase.operations[static_cast<size_t>(rank)] > 0) ranks.push_back(rank);
  }
  const int rank = ranks.at(static_cast<size_t>(random_below(random, static_cast<int64_t>(ranks.size()))));
  constexpr std::array<const char*, 3> ways = {"kill", "killjob", "torn"};
  return {.how = ways[static_cast<size_t>(random_below(random, 3))],
          .at = 1 + random_below(random, phase.operations[static_cast<size_t>(rank)]),
          .rank = rank,
          .calls = phase.calls,
          .path = phase.path};
}

}  // namespace

void kills(int64_t count, Score& score) {
  Rig rig;
  Random random(1);
  const auto phases = counted_phases(rig);
  int64_t worst = 0, worst_at_once = 0;
  for (int64_t i = 0; score.tried() < count && i < 3 * count + 20; ++i) {
    std::string phase;
    const Injection fault = draw(random, phases, i, phase);
    const std::string arguments = i % 2 == 0 ? "" : at_once;
    const Outcome outcome = rig.run("hit", job_ranks, arguments, fault);
    if (outcome.exit_code == 0) {  // the run ended before the fault
      rig.remove("hit");
      continue;
    }
    score.count(phase);
    const std::string what = fmt::format("{} at {} of {} in rank {}, {} ms, {} (exit code {})", fault.how, fault.at,
                                         phase, fault.rank, fault.milliseconds, arguments, outcome.exit_code);
    rig.expect_whole_checkpoints("hit", what, score);
    const bool finished = std::filesystem::exists(rig.folder_of("hit") + "/finished.json");  // killed at its very end
    const int64_t reached = last_step(rig.ledger("hit"));
    const int ranks = 1 + static_cast<int>(i % job_ranks);
    const int64_t resumed = resumed_step(rig.expect_recovery("hit", ranks, arguments, what, score));
    const int64_t lost = finished ? 0 : reached - resumed;
    int64_t& most = arguments.empty() ? worst : worst_at_once;
    most = std::max(most, lost);
    // During a save the newest checkpoint is that of the previous interval.
    if (lost > (arguments.empty() ? 2 * interval : interval)) score.fail(fmt::format("{}: {} steps lost", what, lost));
  }
  if (score.tried() < count) score.fail("too few kills struck");
  score.note = fmt::format("of steps saved every {}, at most {} were lost ({} with background saves)", interval,
                           worst_at_once, worst);
}

void crash_points(int64_t count, Score& score) {
  Rig rig;
  const std::string arguments = "run.max_steps=15 " + at_once;
  for (int ranks = 1; ranks <= count; ++ranks) {
    const std::string base = fmt::format("base{}", ranks);
    rig.run(base, ranks, arguments,
            {.how = "kill", .at = 1, .rank = 0, .calls = "create", .path = ".attempt-step-00000015"});
    if (rig.published(base) != std::vector<std::string>{"step-00000005", "step-00000010"}) {
      score.fail("no run to go on from");
      return;
    }
    for (int rank = 0; rank < ranks; ++rank) {
      bool killed = true;
      int64_t old_found = 0, new_found = 0;
      for (int64_t n = 1; killed; ++n) {
        rig.copy(base, "hit");
        const Injection fault = {.how = "kill", .at = n, .rank = rank, .path = rig.checkpoints_of("hit")};
        killed = rig.run("hit", ranks, arguments, fault).exit_code != 0;
        const std::string what = fmt::format("killed at operation {} of a save in rank {} of {}", n, rank, ranks);
        if (killed) {
          score.count(fmt::format("in rank {} of {}", rank, ranks));
          const int64_t found = resumed_step(rig.expect_recovery("hit", ranks, arguments, what, score));
          if (found != 10 && found != 15) score.fail(fmt::format("{}: step {} was found", what, found));
          ++(found == 15 ? new_found : old_found);
        } else {
          rig.remove("hit");
        }
      }
      if (old_found < 10 || (rank == 0 && new_found < 3)) score.fail("too few operations were seen");
    }
  }
  score.note = "every write, sync, rename and removal of one save: the previous or the new checkpoint is found";
}

}  // namespace llmtrain::test
