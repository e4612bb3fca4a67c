#include "tool/terminal_report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <iostream>
#include <memory>

#include "core/error.hpp"

namespace llmtrain {
namespace {

/// Returns the number before " %" at the end, -1 if there is none.
int percent_of(std::string_view line) {
  if (!line.ends_with(" %")) return -1;
  line.remove_suffix(2);
  const std::string_view digits = line.substr(line.find_last_of(' ') + 1);
  int percent = -1;
  std::from_chars(digits.data(), digits.data() + digits.size(), percent);
  return percent;
}

}  // namespace

ProgressReport terminal_report() {
  if (isatty(STDERR_FILENO) == 0) {
    return [](const std::string& line) {
      if (percent_of(line) < 0) std::cerr << without_controls(line) << '\n';
    };
  }
  return [](const std::string& line) {
    const int percent = percent_of(line);
    if (percent < 0) {
      std::cerr << without_controls(line) << '\n';
    } else {
      const size_t filled = static_cast<size_t>(percent) * 30 / 100;
      std::cerr << fmt::format("\r\x1B[K[{:<30}] {}", std::string(filled, '='), without_controls(line))
                << (percent >= 100 ? "\n" : "") << std::flush;
    }
  };
}

}  // namespace llmtrain
