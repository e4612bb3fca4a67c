#pragma once
// Common parts of the campaigns: a small run, its faults, and the conditions that must hold afterwards.

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "core/clock.hpp"
#include "decks/program.hpp"

namespace llmtrain::test {

/// Counts attempts and reports failures.
class Score {
 public:
  void count(const std::string& kind) { ++kinds_[kind]; }
  void fail(const std::string& what);
  int64_t tried() const;
  int64_t failures() const { return failures_; }
  /// "40 publish, 90 write"
  std::string kinds() const;

  std::string note;  ///< goes into the table

 private:
  std::map<std::string, int64_t> kinds_;
  int64_t failures_ = 0;
};

/// One fault of inject.cpp, and those of tests/decks/faulty.
struct Injection {
  std::string how = {};
  int64_t at = 0;
  int rank = -1;  ///< -1: all
  std::string calls = {};
  std::string path = {};  ///< none: anything in the run's folder
  int64_t milliseconds = 0;
  int signal = 0;
  int again = 0;             ///< repeated at this many further calls
  std::string numbers = {};  ///< faults in the syntax of tests/decks/faulty
  bool names_hosts = false;  ///< rank R lies on host nR, as replays see it
};

/// A deck of 20 steps with a checkpoint after every fifth, and its runs.
class Rig {
 public:
  Rig();
  /// The command as a user gives it, with `fault` in its ranks.
  Outcome run(const std::string& name, int ranks = 1, const std::string& arguments = "",
              const Injection& fault = {}) const;
  /// Shell text of the same.
  std::string command(const std::string& name, int ranks, const std::string& arguments, const Injection& fault) const;
  /// Number of counted calls of each rank in a run without a fault.
  std::vector<int64_t> counted(int ranks, const std::string& arguments, const Injection& what) const;

  std::string folder_of(const std::string& name) const { return (folder / ("runs/" + name)).string(); }
  std::string checkpoints_of(const std::string& name) const { return folder_of(name) + "/checkpoints"; }
  std::string ledger(const std::string& name) const;
  /// Ledger of an undisturbed run with these arguments, and these numerical faults (cached).
  const std::string& undisturbed(const std::string& arguments, const std::string& numbers = "");
  std::vector<std::string> published(const std::string& name) const;  ///< names, oldest first
  void copy(const std::string& from, const std::string& to) const;
  void remove(const std::string& name) const;
  /// Every published checkpoint of the run verifies.
  void expect_whole_checkpoints(const std::string& name, const std::string& what, Score& score) const;
  /// Resumes the run by the same command; expects the ledger of an undisturbed one, and removes the run. Returns the
  /// output.
  std::string expect_recovery(const std::string& name, int ranks, const std::string& arguments, const std::string& what,
                              Score& score, const std::string& numbers = "");
  /// Expects that no process of the run is left after some seconds.
  void expect_nothing_runs(const std::string& name, const std::string& what, Score& score) const;

  TemporaryFolder folder;
  int ranks_per_node = 0;  ///< of pretended nodes; 0: one node

 private:
  std::map<std::string, std::string> undisturbed_;
};

/// LLMTRAIN_FAULT_PATIENCE (1): factor on time limits, for a busy machine.
double patience();
/// The last step in the ledger; 0: none.
int64_t last_step(const std::string& ledger);
/// Step from which a run resumed; 0: it started anew.
int64_t resumed_step(const std::string& output);
bool contains(const std::string& text, const std::string& part);

using Random = std::mt19937_64;
inline int64_t random_below(Random& random, int64_t n) {
  return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
}

// The campaigns; the numbers are those of the table in benchmarks/results/fault_campaigns.md.
void kills(int64_t count, Score& score);
void crash_points(int64_t count, Score& score);
void full_disks(int64_t count, Score& score);
void disk_errors(int64_t count, Score& score);
void bit_flips(int64_t count, Score& score);
void all_damaged(int64_t count, Score& score);
void slow_writer(int64_t count, Score& score);
void rank_faults(int64_t count, Score& score);
void no_memory(int64_t count, Score& score);
void stop_signals(int64_t count, Score& score);
void ended_by_launcher(int64_t count, Score& score);
void stopped_ranks(int64_t count, Score& score);
void slow_disks(int64_t count, Score& score);
void two_owners(int64_t count, Score& score);
void bad_numbers(int64_t count, Score& score);
void loss_spikes(int64_t count, Score& score);
void many_nodes(int64_t count, Score& score);
void replays(int64_t count, Score& score);

}  // namespace llmtrain::test
