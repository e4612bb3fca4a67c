#pragma once
#include <string>

#include "train/config.hpp"

namespace llmtrain {

/// <output>/<name>/ as found at start, and the lock that makes this job its only writer. Rank 0 only.
class RunDirectory {
 public:
  enum class Found { empty, finished };

  /// Creates the directory or examines the one that is there, and locks it. UserError(cannot_create): another job owns
  /// it (named: host, pid, job), it holds an unfinished run that cannot be resumed or a run of another deck and
  /// run.overwrite is false. A finished run of the same deck is found, not touched.
  RunDirectory(const Config& config, const std::string& resolved_deck);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  Found found() const { return found_; }
  const std::string& path() const { return path_; }
  /// Leaves the mark that the run reached its end.
  void mark_finished();

 private:
  std::string path_;
  Found found_ = Found::empty;
  int lock_ = -1;
};

}  // namespace llmtrain
