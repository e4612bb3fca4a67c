// One rank with a fault: it fails, has no memory, or its disk is slow.

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "fault/campaign.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;

int64_t occurrences(const std::string& text, const std::string& part) {
  int64_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

/// Incomplete checkpoints in the folder.
std::vector<std::string> attempts(const std::string& checkpoints) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(checkpoints)) {
    if (entry.path().filename().string().starts_with(".attempt-")) names.push_back(entry.path().filename().string());
  }
  return names;
}

/// The writer's sync takes long, then the process dies: meanwhile the steps continued, up to the next save.
void expect_steps_go_on(Rig& rig, int rank, int64_t milliseconds, Score& score) {
  const Injection fault = {
      .how = "stall", .at = 1, .rank = rank, .calls = "sync", .path = "shard-", .milliseconds = milliseconds};
  rig.run("hit", 2, "", fault);
  const std::string what = fmt::format("a sync of {} ms in rank {}", milliseconds, rank);
  const std::vector<std::string> left = attempts(rig.checkpoints_of("hit"));
  if (const int64_t reached = last_step(rig.ledger("hit")); reached < 7 || reached > 10) {
    score.fail(fmt::format("{}: the run was at step {}, not between the save and the next", what, reached));
  }
  if (left.size() != 1 || !left[0].starts_with(".attempt-step-00000005") || !rig.published("hit").empty()) {
    score.fail(what + ": not one save under way");
  }
  rig.expect_recovery("hit", 2, "", what, score);
}

/// Late, but intact and of its own step: the resumed checkpoint has the hash of the ledger's step.
void expect_late_but_right(Rig& rig, int rank, int64_t milliseconds, Score& score) {
  const Injection fault = {
      .how = "delay", .at = 1, .rank = rank, .calls = "sync", .path = "shard-", .milliseconds = milliseconds};
  const Outcome outcome = rig.run("hit", 2, "run.max_steps=8", fault);
  const std::string what = fmt::format("a sync of {} ms in rank {}", milliseconds, rank);
  if (outcome.exit_code != 0) score.fail(what + ":\n" + outcome.output);
  fs::remove_all(rig.checkpoints_of("hit") + "/step-00000008");
  fs::remove(rig.folder_of("hit") + "/finished.json");
  rig.expect_whole_checkpoints("hit", what, score);
  const std::string output = rig.expect_recovery("hit", 1, "run.max_steps=8", what, score);
  if (resumed_step(output) != 5) score.fail(what + ": not resumed from step 5:\n" + output);
}

/// A save that fails in the background ends the run on all ranks, and leaves no checkpoint.
void expect_failure_is_told(Rig& rig, int rank, Score& score) {
  const Injection fault = {.how = "eio", .at = 1, .rank = rank, .calls = "sync", .path = "shard-"};
  const Outcome outcome = rig.run("hit", 2, "", fault);
  const std::string what = fmt::format("a save that fails in rank {}", rank);
  const int64_t reached = last_step(rig.ledger("hit"));
  if (outcome.exit_code != 74 || !contains(outcome.output, fmt::format("shard-0000{}-of-00002.h5", rank))) {
    score.fail(fmt::format("{}: exit code {}:\n{}", what, outcome.exit_code, outcome.output));
  }
  if (reached > 10) score.fail(fmt::format("{}: told at step {} only", what, reached));  // the next save waits for it
  if (!rig.published("hit").empty() || !attempts(rig.checkpoints_of("hit")).empty()) {
    score.fail(what + ": something of it is left");
  }
  rig.expect_recovery("hit", 2, "", what, score);
}

/// Files of the first checkpoint, which is removed when the third one is published.
const std::string removed_path = ".deleting-step-00005000";
/// Far more steps between saves than a save takes.
const std::string rare_saves = "run.max_steps=20000 checkpoint.every_steps=5000 evaluation.every_steps=0";

/// The removal takes long, then the process dies: the steps continued meanwhile.
void expect_steps_go_on_in_removal(Rig& rig, int64_t milliseconds, Score& score) {
  const Injection fault = {
      .how = "stall", .at = 1, .rank = 0, .calls = "remove", .path = removed_path, .milliseconds = milliseconds};
  const std::string what = fmt::format("a removal of {} ms", milliseconds);
  std::string output, before, after;
  for (int tries = 0; tries < 5; ++tries) {
    rig.remove("hit");
    output = rig.run("hit", 2, rare_saves, fault).output;
    const size_t saved = std::min(output.find("checkpoints/step-00015000: "), output.size());
    before = output.substr(0, saved), after = output.substr(saved);
    if (!contains(before, "\nstep 20000/20000")) break;  // else the save took longer than all later steps
  }
  if (!contains(after, "\nstep ")) score.fail(what + ": no step after the save:\n" + output);
  if (rig.published("hit") != std::vector<std::string>{"step-00010000", "step-00015000"}) {
    score.fail(what + ": not the two newest checkpoints");
  }
  rig.expect_recovery("hit", 2, rare_saves, what, score);
}

/// A removal that fails in the background ends the run on all ranks, and damages nothing else.
void expect_failing_removal_is_told(Rig& rig, Score& score) {
  const Injection fault = {.how = "eio", .at = 1, .rank = 0, .calls = "rename", .path = removed_path};
  const Outcome outcome = rig.run("hit", 2, rare_saves, fault);
  const std::string what = "a removal that fails";
  if (outcome.exit_code != 74 || occurrences(outcome.output, removed_path) != 1) {
    score.fail(fmt::format("{}: exit code {}:\n{}", what, outcome.exit_code, outcome.output));
  }
  rig.expect_whole_checkpoints("hit", what, score);
  rig.expect_recovery("hit", 2, rare_saves, what, score);
}

constexpr std::array<const char*, 7> wrongs = {"throw", "abort", "segv", "exit", "badalloc", "eio", "eacces"};

void expect_end_of_job(Rig& rig, const std::string& how, int64_t point, int64_t points, Random& random, double& slowest,
                       Score& score) {
  const int ranks = 3, rank = static_cast<int>(random_below(random, ranks));
  // HDF5 writes the first bytes of shards; and all ranks open shards when they resume.
  const bool reads = how == "eacces", writes = how == "eio";
  Injection fault = {.how = how,
                     .rank = rank,
                     .calls = reads    ? "open"
                              : writes ? "write"
                                       : "",
                     .path = reads || writes ? "shard-" : ""};
  if (reads) rig.copy("base", "hit");
  int64_t operations = 4;
  if (!reads) operations = rig.counted(ranks, "", fault)[static_cast<size_t>(rank)];
  // Not the last of them: their number varies a little, as some depend on the clock.
  fault.at = 1 + (operations * 9 / 10 - 1) * point / std::max<int64_t>(points - 1, 1);
  const std::string what = fmt::format("{} at operation {} in rank {}", how, fault.at, rank);
  const double begin = now();
  const Outcome outcome = rig.run("hit", ranks, "", fault);
  const double seconds = now() - begin;
  score.count(how);
  slowest = std::max(slowest, seconds);
  if (seconds > 15 * patience())
    score.fail(fmt::format("{}: ended after {:.0f} s:\n{}", what, seconds, outcome.output));
  const bool taken_over = reads && outcome.exit_code == 0 && rig.ledger("hit") == rig.undisturbed("");
  if (outcome.exit_code == 0 && !taken_over) score.fail(what + ": exit code 0:\n" + outcome.output);
  const bool own_message = how == "throw" || how == "exit" || how == "badalloc";
  if (own_message && occurrences(outcome.output, fmt::format("llmtrain: rank {} of {} on ", rank, ranks)) != 1) {
    score.fail(what + ": not one message with the rank:\n" + outcome.output);
  }
  if (contains(outcome.output, "resumed ") && how != "eacces") score.fail(what + ": resumed from nothing");
  rig.expect_whole_checkpoints("hit", what, score);
  if (taken_over) {
    rig.remove("hit");
  } else {
    rig.expect_recovery("hit", 1, "", what, score);
  }
}

}  // namespace

void slow_writer(int64_t count, Score& score) {
  Rig rig;
  const auto milliseconds = static_cast<int64_t>((count < 10 ? 2500 : 10000) * patience());
  for (int64_t i = 0; i < count; ++i) {
    const int rank = static_cast<int>(i / 5 % 2);
    score.count("runs");
    if (i % 5 == 0) expect_steps_go_on(rig, rank, milliseconds, score);
    if (i % 5 == 1) expect_failure_is_told(rig, rank, score);
    if (i % 5 == 2) expect_late_but_right(rig, rank, milliseconds, score);
    if (i % 5 == 3) expect_steps_go_on_in_removal(rig, milliseconds, score);
    if (i % 5 == 4) expect_failing_removal_is_told(rig, score);
  }
  score.note =
      fmt::format("syncs and removals that take {} s, and that fail", static_cast<double>(milliseconds) / 1000);
}

void rank_faults(int64_t count, Score& score) {
  Rig rig;
  Random random(6);
  double slowest = 0;
  if (rig.run("base", 3).exit_code != 0) score.fail("no run to go on from");
  fs::remove(rig.folder_of("base") + "/finished.json");
  for (const char* how : wrongs) {
    for (int64_t point = 0; point < count; ++point) expect_end_of_job(rig, how, point, count, random, slowest, score);
  }
  score.note = fmt::format("{} points each; the slowest job ended after {:.0f} s", count, slowest);
}

void no_memory(int64_t count, Score& score) {
  Rig rig;
  const std::array<std::string, 2> callers = {"malloc", "hdf5malloc"};
  std::array<int64_t, 2> allocations{};
  for (size_t c = 0; c < 2; ++c) allocations[c] = rig.counted(1, "", {.how = "count", .calls = callers[c]})[0];
  int64_t finished = 0, died_in_hdf5 = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int ranks = i % 10 == 9 ? 2 : 1;
    const size_t c = i % 5 == 4 ? 1 : 0;
    const int64_t at = 1 + (allocations[c] - 1) * i / std::max<int64_t>(count - 1, 1);
    const std::string what =
        fmt::format("{} {} of {} fails in the last of {} ranks", callers[c], at, allocations[c], ranks);
    const Outcome outcome = rig.run("hit", ranks, "", {.how = "eio", .at = at, .rank = ranks - 1, .calls = callers[c]});
    score.count(c == 0 ? "by the program" : "by HDF5");
    const bool before_main = outcome.exit_code == 134 && contains(outcome.output, "std::bad_alloc");
    const bool clean = (outcome.exit_code >= 64 && outcome.exit_code <= 79) || before_main;
    if (outcome.exit_code == 0) {
      ++finished;
      if (rig.ledger("hit") != rig.undisturbed("")) score.fail(what + ": another ledger");
    } else if (c == 1 && outcome.exit_code > 128 && outcome.exit_code != 137) {
      ++died_in_hdf5;
    } else if (!clean) {
      score.fail(fmt::format("{}: exit code {}:\n{}", what, outcome.exit_code, outcome.output));
    }
    rig.expect_whole_checkpoints("hit", what, score);
    if (i % 10 == 0 || outcome.exit_code > 128) {
      rig.expect_recovery("hit", 1, "", what, score);
    } else {
      rig.remove("hit");
    }
  }
  score.note = fmt::format(
      "spread over the {} allocations of a run and HDF5's {}; {} runs did without, {} died inside HDF5 (its virtual "
      "datasets use memory that they did not get)",
      allocations[0], allocations[1], finished, died_in_hdf5);
}

}  // namespace llmtrain::test
