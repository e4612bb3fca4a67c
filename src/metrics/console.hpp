#pragma once
#include <cstdio>
#include <memory>
#include <string>

#include "core/terminal.hpp"
#include "metrics/append_file.hpp"

namespace llmtrain {

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
