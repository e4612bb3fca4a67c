#pragma once
#include <string>

#include "train/config.hpp"

namespace llmtrain {

/// <output>/<name>/ as found at start, and the lock that makes this job its only writer. Rank 0 only.
class RunDirectory {
 public:
  enum class Found { empty, finished };

  /// Creates the directory or examines the one that is there, and locks it. UserError(cannot_create): another job owns
  /// it (host, pid and job are named), it holds a run of another deck, or one that was cut off, and run.overwrite is
  /// false. A finished run of the same deck is found, not touched.
  explicit RunDirectory(const Config& config);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  static std::string path_of(const Config& config);

  Found found() const { return found_; }
  const std::string& path() const { return path_; }
  /// deck.ini, with everything resolved.
  void write_deck(const std::string& resolved_deck) const;
  /// Leaves the mark that the run reached its end, after everything else is on disk.
  void mark_finished(int64_t steps) const;

 private:
  void lock();

  std::string path_;
  std::string fingerprint_;
  Found found_ = Found::empty;
  int lock_ = -1;
};

}  // namespace llmtrain
