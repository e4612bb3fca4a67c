#include "metrics/console.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "core/error.hpp"

namespace llmtrain {

namespace {

/// mpirun gives its ranks a pseudo-terminal even when its own output goes to a file: there it cannot be known.
bool is_terminal(int descriptor) { return isatty(descriptor) == 1 && std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr; }

}  // namespace

Console::Console(const std::string& log_path, bool active)
    : active_(active), terminal_(active && is_terminal(STDOUT_FILENO)) {
  if (active && !log_path.empty()) log_ = std::make_unique<AppendFile>(log_path);
}

Console::~Console() { end_live(); }

void Console::end_live() {
  if (!live_) return;
  std::fputs("\r\033[K", stdout);
  live_ = false;
}

void Console::print(const std::string& text) {
  if (!active_) return;
  end_live();
  const std::string line = without_controls(text) + "\n";
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
  if (log_) log_->append(line);
}

void Console::log_only(const std::string& text) {
  if (log_) log_->append(text + "\n");
}

void Console::warn(const std::string& text) {
  if (!active_) return;
  end_live();
  const char* colour = is_terminal(STDERR_FILENO) ? "\033[33m" : "";
  std::fflush(stdout);
  const std::string line = "warning: " + without_controls(text);
  std::fputs(fmt::format("{}{}{}\n", colour, line, *colour != '\0' ? "\033[0m" : "").c_str(), stderr);
  if (log_) log_->append(line + "\n");
}

void Console::live(const std::string& text) {
  if (!terminal_) return;
  winsize size{};  // a line that wraps could not be overwritten
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  const std::string_view shown = std::string_view(text).substr(0, known ? size.ws_col - 1U : text.size());
  std::fputs(fmt::format("\r{}\033[K", shown).c_str(), stdout);
  std::fflush(stdout);
  live_ = true;
}

std::string with_unit(double value, const std::string& unit) {
  static constexpr std::array<const char*, 6> prefixes = {"", "k", "M", "G", "T", "P"};
  size_t i = 0;
  while (std::abs(value) >= 999.5 && i + 1 < prefixes.size()) {
    value /= 1000;
    ++i;
  }
  const int decimals = i == 0 && value == std::floor(value) ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}{}", value, decimals, prefixes[i], unit);
}

std::string duration(double seconds) {
  if (seconds < 9.95) return fmt::format("{:.1f} s", std::max(seconds, 0.0));
  const auto s = static_cast<int64_t>(std::llround(seconds));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  if (s < 48 * 3600) return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
  return fmt::format("{} d {:02} h", s / 86400, s / 3600 % 24);
}

std::string bytes_text(double bytes) {
  static constexpr std::array<const char*, 6> units = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t i = 0;
  while (bytes >= 1000 && i + 1 < units.size()) {
    bytes /= 1024;
    ++i;
  }
  return i == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.{}f} {}", bytes, bytes < 9.995 ? 2 : 1, units[i]);
}

}  // namespace llmtrain
