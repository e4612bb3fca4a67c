#pragma once
// Text on a terminal, and the live line at its end.

#include <cstdio>
#include <mutex>
#include <string>
#include <string_view>

#include "core/progress.hpp"

namespace llmtrain {

/// True if a line at this descriptor can be replaced. False under mpirun, which gives its ranks a pseudo-terminal even
/// if its output goes to a file, and if TERM is dumb.
bool shows_live_line(int descriptor);
/// True if escapes of colour have an effect there, and NO_COLOR is not set (https://no-color.org).
bool shows_colour(int descriptor);
/// True if the locale of the environment encodes text as UTF-8.
bool locale_is_utf8();
/// Columns, at this moment; 80 where they are unknown.
size_t terminal_width(int descriptor);
/// The first `columns` characters of UTF-8 text.
std::string_view fit(std::string_view text, size_t columns);
/// "[====      ]" of `columns` characters, brackets included.
std::string bar_text(double fraction, size_t columns);

/// The line at the end of a terminal, which is replaced as work goes on.
class LiveLine : public ProgressDisplay {
 public:
  /// Without a terminal at this stream it shows nothing.
  explicit LiveLine(std::FILE* stream);
  ~LiveLine() override;

  bool active() const { return active_; }
  size_t width() const;
  /// Replaces the line by this text, cut to the width of the terminal.
  void show(std::string_view text);
  void show(const ProgressState& state) override;
  void clear() override;

 private:
  std::FILE* stream_;
  bool active_, colour_;
  bool shown_ = false;
  std::mutex mutex_;
};

}  // namespace llmtrain
