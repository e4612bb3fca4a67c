// Ranks that compute wrongly: the next replay names the node, and without it the run ends with the ledger of an
// undisturbed one.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "fault/campaign.hpp"

namespace llmtrain::test {
namespace {

/// Number of completed steps before the first replay in step `from` or a later one (from 0), in a run of 20 steps.
int64_t next_replay(int64_t from) { return from > 15 ? 19 : std::max<int64_t>((from + 4) / 5 * 5, 5); }

/// Bits that are wrong from a step on in all passes of a rank; in a copy of a weight that stays, once.
void expect_named(Rig& rig, Random& random, Score& score) {
  const std::array<const char*, 4> kinds = {"bit gradient", "bit weights", "bit result", "bitonce weights"};
  const auto kind = static_cast<size_t>(random_below(random, 4));
  const int64_t stage = kind == 3 ? 0 : random_below(random, 4), ranks = 3 + random_below(random, 2);
  const int64_t step = random_below(random, 20), rank = random_below(random, ranks);
  const char* compute = kind != 3 && random_below(random, 2) == 1 ? "bf16" : "fp32";
  const char* reduction = random_below(random, 2) == 1 ? "tree" : "ordered";
  const std::string deck = fmt::format("precision.compute={} parallel.reduction={}", compute, reduction);
  const std::string arguments = fmt::format("{} parallel.zero={} watchdog.replay_every_steps=5", deck, stage);
  const std::string numbers = fmt::format("{} {} {} {}", kinds[kind], step, rank, random_below(random, 1000000));
  const std::string what = fmt::format("{} of {} ranks, {}", numbers, ranks, arguments);
  const Outcome outcome = rig.run("hit", static_cast<int>(ranks), arguments, {.numbers = numbers, .names_hosts = true});
  score.count(kinds[kind]);
  const std::string excluded = rig.folder_of("hit") + "/excluded_nodes";
  const int64_t at = next_replay(step), trusted = at == 19 ? 15 : at - 5;
  const std::string end = trusted > 0 ? fmt::format("resumes from step {}\n", trusted) : "begins anew\n";
  if (outcome.exit_code != 76 ||
      !contains(outcome.output, fmt::format("\nstep {}: the gradients of rank {} on n{} differ", at + 1, rank, rank)) ||
      !contains(outcome.output, "the same command " + end)) {
    score.fail(fmt::format("{}: exit code {}:\n{}", what, outcome.exit_code, outcome.output));
  } else if (read_file(excluded) != fmt::format("n{}\n", rank)) {
    score.fail(fmt::format("{}: excluded {}", what, read_file(excluded)));
  } else {
    // Without the node, and its fault.
    const std::string all = deck + " watchdog.replay_every_steps=5";
    const std::string again = rig.expect_recovery("hit", static_cast<int>(ranks) - 1, all, what, score);
    if (resumed_step(again) != trusted) score.fail(what + ": resumed elsewhere:\n" + again);
    if (!contains(again, fmt::format("n{} computes wrongly", rank))) score.fail(what + ": not named again:\n" + again);
  }
  rig.remove("hit");
}

}  // namespace

void replays(int64_t count, Score& score) {
  Rig rig;
  Random random(20);
  for (int64_t i = 0; i < count; ++i) expect_named(rig, random, score);
  score.note = "the next replay names the node; the run goes back to the checkpoint before, and ends as undisturbed";
}

}  // namespace llmtrain::test
