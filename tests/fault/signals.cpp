// Requests to stop at any moment, ranks and disks that hang, and a second job for the same run. Fault positions are
// counted in operations or steps, never in time: on an idle machine these runs last a tenth of a second.

#include <fmt/format.h>

#include <algorithm>
#include <csignal>

#include "fault/campaign.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;

constexpr int job_ranks = 3;

/// A signal to one rank when it changes a file of the run; repeated `again` times.
Injection at_some_operation(Random& random, const std::vector<int64_t>& operations, const std::string& how,
                            int number) {
  const int rank = static_cast<int>(random_below(random, job_ranks));
  return {.how = how,
          .at = 1 + random_below(random, operations[static_cast<size_t>(rank)]),
          .rank = rank,
          .signal = number};
}

/// Expects exit code 75 and a checkpoint, unless it was stopped before there was anything to save, or had finished.
void expect_stopped(Rig& rig, const std::string& what, const Outcome& outcome, int64_t& late, Score& score) {
  const bool finished = fs::exists(rig.folder_of("hit") + "/finished.json");
  const bool nothing = contains(outcome.output, "while the data were read") ||
                       contains(outcome.output, "stopped by SIGUSR1 after 0 of") ||
                       contains(outcome.output, "stopped by SIGTERM after 0 of");
  if (outcome.exit_code == 0 && finished) {
    ++late;
    if (rig.ledger("hit") != rig.undisturbed("")) score.fail(what + ": another ledger");
  } else if (outcome.exit_code != 75 || finished || (rig.published("hit").empty() && !nothing)) {
    score.fail(fmt::format("{}: exit code {}:\n{}", what, outcome.exit_code, outcome.output));
  }
  rig.expect_whole_checkpoints("hit", what, score);
  rig.expect_recovery("hit", 1 + static_cast<int>(score.tried() % 4), "", what, score);
}

}  // namespace

void stop_signals(int64_t count, Score& score) {
  Rig rig;
  Random random(7);
  const std::vector<int64_t> operations = rig.counted(job_ranks, "", {});
  int64_t late = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int number = i % 2 == 0 ? SIGUSR1 : SIGTERM;
    Injection fault = at_some_operation(random, operations, "signal", number);
    std::string kind = "to one rank, thrice";
    fault.again = 2;
    if (i % 5 == 1) {
      kind = "to one rank in a step";
      fault = {.numbers = fmt::format("signal step {} {} {}", random_below(random, 19), fault.rank, number)};
    } else if (i % 5 == 2) {
      kind = "to mpirun";
      fault = at_some_operation(random, operations, "launcher", SIGUSR1);
    } else if (i % 5 == 3) {
      kind = "while text is tokenized";
      fs::remove_all(rig.folder / "cache");
      fault.at = 1 + random_below(random, 3);
      fault.rank = 0;
      fault.path = (rig.folder / "cache").string();
    }
    score.count(kind);
    const std::string what =
        fmt::format("signal {} {}, operation {} in rank {} {}", number, kind, fault.at, fault.rank, fault.numbers);
    expect_stopped(rig, what, rig.run("hit", job_ranks, "", fault), late, score);
  }
  if (late > count / 2) score.fail(fmt::format("{} of {} signals came when all was done", late, count));
  score.note = fmt::format("75 and a checkpoint; {} came when the last step was done", late);
}

void ended_by_launcher(int64_t count, Score& score) {
  Rig rig;
  Random random(8);
  const std::vector<int64_t> operations = rig.counted(job_ranks, "", {});
  for (int64_t i = 0; i < count; ++i) {
    const Injection fault = at_some_operation(random, operations, "launcher", SIGTERM);
    const std::string what = fmt::format("SIGTERM to mpirun at operation {} in rank {}", fault.at, fault.rank);
    rig.run("hit", job_ranks, "", fault);
    score.count("jobs");
    rig.expect_nothing_runs("hit", what, score);
    rig.expect_whole_checkpoints("hit", what, score);
    rig.expect_recovery("hit", 1 + static_cast<int>(i % 4), "", what, score);
  }
  score.note = "nothing is left running, the checkpoints are whole, the same command goes on";
}

void stopped_ranks(int64_t count, Score& score) {
  Rig rig;
  Random random(9);
  const std::string arguments = "watchdog.lost_after=3s";
  const Injection saves = {.calls = "create,write,truncate,sync", .path = ".attempt-"};
  const std::vector<int64_t> operations = rig.counted(job_ranks, arguments, saves);
  double slowest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int rank = static_cast<int>(random_below(random, job_ranks));
    Injection fault = {.numbers = fmt::format("signal step {} {} {}", 1 + random_below(random, 18), rank, SIGSTOP)};
    if (i % 2 == 1) {
      fault = saves;
      fault.how = "signal";
      fault.signal = SIGSTOP;
      fault.rank = rank;
      fault.at = 1 + random_below(random, operations[static_cast<size_t>(rank)] * 3 / 4);  // not in the last save
    }
    score.count(i % 2 == 0 ? "in a step" : "in a save");
    const std::string what = fmt::format("rank {} stopped at operation {} of saves {}", rank, fault.at, fault.numbers);
    const double begin = now();
    const Outcome outcome = rig.run("hit", job_ranks, arguments, fault);
    slowest = std::max(slowest, now() - begin);
    if (outcome.exit_code != 76 ||
        !contains(outcome.output, fmt::format("llmtrain: rank {} is lost: no heartbeat", rank)) ||
        !contains(outcome.output, "the process is stopped") || !contains(outcome.output, " #")) {
      score.fail(fmt::format("{}: exit code {}:\n{}", what, outcome.exit_code, outcome.output));
    }
    rig.expect_nothing_runs("hit", what, score);
    rig.expect_whole_checkpoints("hit", what, score);
    rig.expect_recovery("hit", 1 + static_cast<int>(i % 4), arguments, what, score);
  }
  score.note = fmt::format(
      "76 by the watchdog with the rank, its section and collective; the slowest job took {:.0f} s, "
      "with lost_after = 3s",
      slowest);
}

void slow_disks(int64_t count, Score& score) {
  Rig rig;
  for (int64_t i = 0; i < count; ++i) {
    const bool hangs = i % 2 == 1;
    const int rank = static_cast<int>(i / 2 % 2);
    // With enough time for a slow machine.
    const auto deadline = static_cast<int>((hangs ? 5 : 20) * patience());
    const std::string arguments = fmt::format(
        "watchdog.stuck_after={0}s watchdog.io_stuck_after={0}s checkpoint.every_steps={1}", deadline, hangs ? 5 : 20);
    const Injection fault = {.how = hangs ? "delay" : "slow",
                             .at = 2,
                             .rank = rank,
                             .calls = "write,sync",
                             .path = "shard-",
                             .milliseconds = hangs ? 1'000'000 : 500};
    const std::string what = fmt::format("{} in rank {}", hangs ? "a write that hangs" : "slow writes", rank);
    const Outcome outcome = rig.run("hit", 2, arguments, fault);
    score.count(hangs ? "writes that hang" : "slow disks");
    if (hangs && (outcome.exit_code != 76 ||
                  !contains(outcome.output, fmt::format("llmtrain: rank {} is stuck: no progress for", rank)) ||
                  !contains(outcome.output, "saving"))) {
      score.fail(fmt::format("{}: exit code {}:\n{}", what, outcome.exit_code, outcome.output));
    }
    if (!hangs && (outcome.exit_code != 0 || rig.ledger("hit") != rig.undisturbed(arguments))) {
      score.fail(fmt::format("{}: exit code {}:\n{}", what, outcome.exit_code, outcome.output));
    }
    rig.expect_nothing_runs("hit", what, score);
    rig.expect_whole_checkpoints("hit", what, score);
    rig.expect_recovery("hit", 2, arguments, what, score);
  }
  score.note =
      "every write and sync of a rank 0.5 s late: left alone; one that hangs for longer than io_stuck_after: 76";
}

void two_owners(int64_t count, Score& score) {
  Rig rig;
  // The first job pauses in its first save until it is killed.
  const Injection holds = {
      .how = "delay", .at = 1, .rank = 0, .calls = "create", .path = ".attempt-", .milliseconds = 1'000'000};
  for (int64_t i = 0; i < count; ++i) {
    const int ranks = 1 + static_cast<int>(i % 3);
    const std::string what = fmt::format("a second job beside one of {} ranks", ranks);
    fs::remove(rig.folder / "job");
    const Outcome outcome = shell(fmt::format(
        "({}) >{} & job=$!; for i in $(seq 1200); do grep -q . {}/ledger.jsonl && break; sleep 0.1; done 2>/dev/null; "
        "sleep 0.5; {}; echo \"second: $?\"; kill -KILL $(cat {}); wait $job; true",
        rig.command("hit", ranks, "", holds), (rig.folder / "first").string(), rig.folder_of("hit"),
        rig.command("hit", 1, "", {}), (rig.folder / "job").string()));
    score.count("pairs");
    if (!contains(outcome.output, "second: 73") || !contains(outcome.output, "another job owns this run (host ") ||
        !contains(outcome.output, ", process ")) {
      score.fail(what + ":\n" + outcome.output);
    }
    rig.expect_recovery("hit", 1 + static_cast<int>(i % 2), "", what + ", which was killed", score);
  }
  score.note = "the second ends with 73 and names the first; when that is killed, the next takes its place";
}

}  // namespace llmtrain::test
