#pragma once
#include <string>
#include <vector>

#include "train/config/config.hpp"

namespace llmtrain {

/// <output>/<name>/ as found at start, and the lock that makes this job its only writer. Rank 0 only.
class RunDirectory {
 public:
  /// resumable: with checkpoints to resume from. A run that was cut off before its first is as good as empty.
  enum class Found { empty, resumable, finished };

  /// Creates the directory or examines the one that is there, and locks it. UserError(cannot_create): another job owns
  /// it (host, pid and job are named), it holds a run of another deck and run.overwrite is false; or it holds files of
  /// these names that are no run's. A finished run of the same deck is found, not touched.
  explicit RunDirectory(const Config& config);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  static std::string path_of(const Config& config);

  /// Whether start() was done by this Slurm job, in whichever of its lives. False outside Slurm.
  static bool started_by_this_job(const Config& config);

  Found found() const { return found_; }
  /// Of a finished run: keys of files that the deck spells otherwise, as "key: <value> there, <value> here". Whether
  /// they are the same files is for the caller to find out, or to refuse.
  const std::vector<std::string>& respelled() const { return respelled_; }
  [[noreturn]] void refuse_respelled() const;
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  const std::string& path() const { return path_; }
  /// Removes what an earlier run left and writes deck.ini: after everything else that can be wrong has been checked.
  void start(const std::string& resolved_deck) const;
  /// Instead of start() for a run that goes on: what killed jobs left behind goes, deck.ini is written anew.
  void resume(const std::string& resolved_deck) const;
  /// A small file of results, whole or not at all.
  void write_file(const std::string& name, const std::string& text) const;
  /// Leaves the mark that the run reached its end, after everything else is on disk.
  void mark_finished(int64_t steps) const;

 private:
  void lock();
  void refuse_living_owner(const std::string& owner) const;
  void sweep_temporary() const;
  bool is_finished(const Config& config);
  void refuse_another_deck(const Config& config, const std::string& what) const;

  std::string path_;
  Found found_ = Found::empty;
  std::vector<std::string> respelled_;
  int lock_ = -1;
};

}  // namespace llmtrain
