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
  /// Opens the file. `resumes`: its complete rows are kept, and a line that a killed job left unfinished is removed;
  /// otherwise it must not exist, unless `overwrite` replaces it. UserError(cannot_create), UserError(io).
  GenerationOutput(const std::string& path, bool resumes, bool overwrite);

  int64_t rows() const { return rows_; }  ///< that are in the file
  /// The last row of an earlier job; empty: there is none.
  const std::string& last_row() const { return last_row_; }
  /// Adds row `number` with its line end. Rows that follow the file's without a gap are written by write().
  void add(int64_t number, std::string row) { waiting_[number] = std::move(row); }
  /// Returns true if it wrote something.
  bool write();
  void sync() { file_->sync(); }

 private:
  int64_t rows_ = 0;
  std::string last_row_;
  std::map<int64_t, std::string> waiting_;
  std::optional<AppendFile> file_;
};

}  // namespace llmtrain
