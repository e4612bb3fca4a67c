#include "metrics/console.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

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

}  // namespace llmtrain
