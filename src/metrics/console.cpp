#include "metrics/console.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <string_view>

#include "core/error.hpp"

namespace llmtrain {

namespace {

/// mpirun gives its ranks a pseudo-terminal even if its output goes to a file, so a terminal cannot be detected there.
bool is_terminal(int descriptor) { return isatty(descriptor) == 1 && std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr; }

/// The reader of an output stream can exit (`llmtrain deck.ini | head`). Later output is discarded, and the run
/// continues.
bool reader_gone = false;

void write_out(std::FILE* stream, std::string_view text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stream) == text.size() && std::fflush(stream) == 0;
  if (written || errno != EPIPE) return;
  const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere < 0 || dup2(nowhere, fileno(stream)) < 0) return;
  close(nowhere);
  std::clearerr(stream);
  if (stream == stdout) reader_gone = true;
}

}  // namespace

void keep_going_without_reader() {
  reader_gone = false;
  std::signal(SIGPIPE, SIG_IGN);
}

Console::Console(const std::string& log_path, bool active)
    : active_(active), terminal_(active && is_terminal(STDOUT_FILENO)) {
  if (active && !log_path.empty()) log_ = std::make_unique<AppendFile>(log_path);
}

Console::~Console() { end_live(); }

void Console::end_live() {
  if (!live_) return;
  write_out(stdout, "\r\033[K");
  live_ = false;
}

void Console::print(const std::string& text) {
  if (!active_) return;
  end_live();
  const std::string line = without_controls(text) + "\n";
  write_out(stdout, line);
  if (!log_) return;
  log_->append(line);
  report_lost_reader();
}

void Console::report_lost_reader() {
  if (!reader_gone || reported_) return;
  reported_ = true;
  log_->append("warning: the reader of the standard output is gone; the run continues, and this file is its log\n");
}

void Console::log_only(const std::string& text) {
  if (log_) log_->append(text + "\n");
}

void Console::warn(const std::string& text) {
  if (!active_) return;
  end_live();
  const char* colour = is_terminal(STDERR_FILENO) ? "\033[33m" : "";
  const std::string line = "warning: " + without_controls(text);
  write_out(stderr, fmt::format("{}{}{}\n", colour, line, *colour != '\0' ? "\033[0m" : ""));
  if (log_) log_->append(line + "\n");
}

void Console::live(const std::string& text) {
  if (!terminal_) return;
  winsize size{};  // a wrapped line could not be overwritten
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  const std::string_view shown = std::string_view(text).substr(0, known ? size.ws_col - 1U : text.size());
  write_out(stdout, fmt::format("\r{}\033[K", shown));
  live_ = true;
}

}  // namespace llmtrain
