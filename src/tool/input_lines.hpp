#pragma once
#include <algorithm>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"
#include "data/files/jsonl.hpp"
#include "data/files/unpack.hpp"

namespace llmtrain {

/// Reads the lines of a file, the rows of a table as lines of JSON, or the standard input for "-".
class InputLines {
 public:
  /// `columns`: entries of data.columns.
  explicit InputLines(const std::string& path, const std::vector<std::string>& columns = {}) : from_file_(path != "-") {
    if (!from_file_) return;
    file_.emplace(open_lines(path, columns));
    lines_.emplace(*file_, file_->size(), 0, file_->size(), default_row_limit);
  }
  /// Completed fraction; 0 for the standard input.
  double done() const {
    return from_file_ ? static_cast<double>(bytes_) / static_cast<double>(std::max<int64_t>(file_->size(), 1)) : 0;
  }
  bool next(std::string_view& line) {
    if (from_file_) {
      const bool more = lines_->next(line);
      bytes_ += more ? std::ssize(line) + 1 : 0;
      return more;
    }
    line_.clear();
    std::streambuf& in = *std::cin.rdbuf();
    int c = in.sbumpc();
    if (c == std::streambuf::traits_type::eof()) return false;
    for (; c != std::streambuf::traits_type::eof() && c != '\n'; c = in.sbumpc()) {
      if (std::ssize(line_) == default_row_limit) throw UserError(ExitCode::bad_content, "the row is too long");
      line_ += static_cast<char>(c);
    }
    line = line_;
    return true;
  }

 private:
  bool from_file_;
  int64_t bytes_ = 0;
  std::optional<FileHandle> file_;
  std::optional<LineReader> lines_;
  std::string line_;
};

}  // namespace llmtrain
