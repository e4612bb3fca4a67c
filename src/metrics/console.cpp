#include "metrics/console.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <string_view>

#include "core/error.hpp"

namespace llmtrain {

namespace {

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

void Sparkline::add(double value) {
  if (!std::isfinite(value)) return;
  if (cells_.empty() || cells_.back().count == values_of_cell_) {
    if (cells_.size() == max_cells) {  // every two become one
      for (size_t i = 0; i < max_cells / 2; ++i) {
        const Cell &left = cells_[2 * i], &right = cells_[2 * i + 1];
        cells_[i] = {left.sum + right.sum, left.count + right.count};
      }
      cells_.resize(max_cells / 2);
      values_of_cell_ *= 2;
    }
    cells_.emplace_back();
  }
  cells_.back().sum += value;
  ++cells_.back().count;
}

std::string Sparkline::text() const {
  constexpr double levels = 8;
  if (cells_.size() < 2) return {};
  const auto [least, most] =
      std::ranges::minmax_element(cells_, [](const Cell& a, const Cell& b) { return a.mean() < b.mean(); });
  const double low = least->mean(), range = most->mean() - low;
  std::string text;
  for (const Cell& cell : cells_) {
    const double height = range > 0 ? (cell.mean() - low) / range : 0;
    const int level = static_cast<int>(std::min(height * levels, levels - 1));
    text += "\xE2\x96";  // U+2581 is E2 96 81
    text += static_cast<char>(0x81 + level);
  }
  return text;
}

void keep_going_without_reader() {
  reader_gone = false;
  std::signal(SIGPIPE, SIG_IGN);
}

Console::Console(const std::string& log_path, bool active)
    : active_(active), line_(stdout), scope_(has_live() ? &line_ : nullptr) {
  if (!active || log_path.empty()) return;
  try {
    log_ = std::make_unique<AppendFile>(log_path);
  } catch (const UserError& error) {
    warn(fmt::format("{}; the run continues without this file", error.what()));
  }
}

void Console::print(const std::string& text) {
  if (!active_) return;
  line_.clear();
  const std::string line = without_controls(text) + "\n";
  write_out(stdout, line);
  if (!log_) return;
  append_to_log(line);
  report_lost_reader();
}

/// The run continues without the file if its disk is full.
void Console::append_to_log(const std::string& text) {
  if (!log_) return;
  try {
    log_->append(text);
  } catch (const UserError& error) {
    log_.reset();
    const std::string_view what = error.what();
    warn(fmt::format("{}; the run continues without this file", what.substr(0, what.find(". "))));
  }
}

void Console::report_lost_reader() {
  if (!reader_gone || reported_) return;
  reported_ = true;
  append_to_log("warning: the reader of the standard output is gone; the run continues, and this file is its log\n");
}

void Console::log_only(const std::string& text) { append_to_log(text + "\n"); }

void Console::warn(const std::string& text) {
  if (!active_) return;
  line_.clear();
  const char* colour = shows_colour(STDERR_FILENO) ? "\033[33m" : "";
  const std::string line = "warning: " + without_controls(text);
  write_out(stderr, fmt::format("{}{}{}\n", colour, line, *colour != '\0' ? "\033[0m" : ""));
  append_to_log(line + "\n");
}

void Console::live(const std::string& text) {
  if (has_live()) line_.show(text);
}

}  // namespace llmtrain
