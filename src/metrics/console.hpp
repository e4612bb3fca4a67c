#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/terminal.hpp"
#include "metrics/append_file.hpp"

namespace llmtrain {

/// A small curve of all values so far, in block characters of UTF-8 (U+2581 to U+2588).
class Sparkline {
 public:
  /// Values that are not finite are left out.
  void add(double value);
  /// At most `max_cells` characters; empty before the second value.
  std::string text() const;
  static constexpr size_t max_cells = 16;

 private:
  struct Cell {
    double sum = 0;
    int64_t count = 0;
    double mean() const { return sum / static_cast<double>(count); }
  };
  std::vector<Cell> cells_;
  int64_t values_of_cell_ = 1;
};

/// Keeps this process alive if the reader of its standard output or error stream exits: consoles then discard their
/// output, and log.txt records it.
void keep_going_without_reader();

/// Console output: the standard output, and log.txt without escapes. On a terminal the last line can be live; it also
/// shows the progress of long work.
class Console {
 public:
  /// With an empty `log_path` it writes to the standard output only. Inactive, it writes nothing.
  Console(const std::string& log_path, bool active);
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void print(const std::string& text);
  void warn(const std::string& text);
  void log_only(const std::string& text);
  /// Replaces the live line of a terminal, cut to its width; does nothing in a file.
  void live(const std::string& text);
  bool has_live() const { return active_ && line_.active(); }
  size_t width() const { return line_.width(); }

 private:
  void append_to_log(const std::string& text);
  void report_lost_reader();

  bool active_;
  bool reported_ = false;  ///< True if log.txt records that the reader is gone
  LiveLine line_;
  ProgressScope scope_;
  std::unique_ptr<AppendFile> log_;  ///< null: there is none, or it cannot be written any more
};

}  // namespace llmtrain
