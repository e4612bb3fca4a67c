#pragma once
#include <cstdio>
#include <memory>
#include <string>

#include "metrics/append_file.hpp"

namespace llmtrain {

/// A standard output or error stream that nobody reads any more does not end this process: consoles print into nothing
/// then, and log.txt says so.
void keep_going_without_reader();

/// Lines for people: standard output, and log.txt without escapes. On a terminal the last line can be live.
class Console {
 public:
  /// `log_path` empty: standard output only. Inactive: nothing at all.
  Console(const std::string& log_path, bool active);
  ~Console();
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  void print(const std::string& text);
  void warn(const std::string& text);
  void log_only(const std::string& text);
  /// Replaces the live line of a terminal, cut to its width; nothing in a file.
  void live(const std::string& text);
  bool has_live() const { return terminal_; }

 private:
  void end_live();
  void note_reader_gone();

  bool active_;
  bool terminal_;
  bool live_ = false;
  bool noted_ = false;  ///< log.txt says that the reader is gone
  std::unique_ptr<AppendFile> log_;
};

}  // namespace llmtrain
