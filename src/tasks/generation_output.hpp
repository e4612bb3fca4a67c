#pragma once
// The file of results of run.task = generate: rows in order, whoever made them and when.

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "metrics/append_file.hpp"

namespace llmtrain {

class GenerationOutput {
 public:
  /// Throws UserError(cannot_create) if the file exists.
  static void require_new(const std::string& path);
  /// Reads the rows of an earlier job. Unless the run `resumes` the file must not exist, or `overwrite` removes it.
  /// Throws UserError(cannot_create), UserError(io).
  GenerationOutput(const std::string& path, bool resumes, bool overwrite);
  /// Removes a line that a killed job left unfinished, and opens the file; add() and write() follow.
  void start();

  int64_t rows() const { return rows_; }  ///< that are in the file
  /// The last row of an earlier job; empty: there is none.
  const std::string& last_row() const { return last_row_; }
  /// Adds row `number` with its line end. Rows that follow the file's without a gap are written by write().
  void add(int64_t number, std::string row) { waiting_[number] = std::move(row); }
  /// Returns true if it wrote something.
  bool write();
  void sync() { file_->sync(); }

 private:
  std::string path_;
  int64_t rows_ = 0;
  int64_t complete_ = 0;  ///< bytes of the complete rows
  std::string last_row_;
  std::map<int64_t, std::string> waiting_;
  std::optional<AppendFile> file_;
};

}  // namespace llmtrain
