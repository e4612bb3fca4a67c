#pragma once
#include <string>
#include <vector>

#include "train/config/load_config.hpp"

namespace llmtrain {

/// <output>/<name>/ and its lock, which makes this job its only writer. Rank 0 only.
class RunDirectory {
 public:
  /// resumable: there are checkpoints to resume from. A run that ended before its first checkpoint counts as empty.
  enum class Found { empty, resumable, finished };

  /// Creates or examines the directory, and locks it. UserError(cannot_create): another job owns it (the message names
  /// host, pid and job), it holds a run of another deck and run.overwrite is false; or it holds files of these names
  /// that do not belong to a run. A finished run of the same deck is left unchanged.
  RunDirectory(const RunConfig& run, const DeckComparison& compare);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  /// True if this Slurm job called start() for the directory `path`, also before a requeue. False outside Slurm.
  static bool started_by_this_job(const std::string& path);

  Found found() const { return found_; }
  /// For a finished run: keys whose files have other names in its deck, as "key: <value> there, <value> here". The
  /// caller must check that the files are the same, or refuse.
  const std::vector<std::string>& renamed_files() const { return renamed_files_; }
  [[noreturn]] void refuse_renamed_files() const;
  std::string checkpoints() const { return path_ + "/checkpoints"; }
  const std::string& path() const { return path_; }
  /// Removes files of an earlier run and writes deck.ini; called after all other checks.
  void start(const std::string& resolved_deck) const;
  /// Called instead of start() for a resumed run: removes temporary files of killed jobs and rewrites deck.ini.
  void resume(const std::string& resolved_deck) const;
  /// Writes a small result file atomically.
  void write_file(const std::string& name, const std::string& text) const;
  /// Marks the run as finished, after everything else is on disk.
  void mark_finished(int64_t steps) const;

 private:
  void lock();
  void refuse_living_owner(const std::string& owner) const;
  void remove_temporary_files() const;
  bool is_finished(int64_t max_steps, const DeckComparison& compare);
  void refuse_another_deck(const DeckComparison& compare, const std::string& what) const;

  std::string path_;
  bool overwrites_;
  Found found_ = Found::empty;
  std::vector<std::string> renamed_files_;
  int lock_ = -1;
};

}  // namespace llmtrain
