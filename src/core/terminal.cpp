#include "core/terminal.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "core/error.hpp"
#include "core/number_text.hpp"

namespace llmtrain {

namespace {

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

constexpr size_t widest_bar = 32, narrowest_bar = 7;
constexpr std::string_view green = "\033[32m", plain = "\033[0m";

}  // namespace

bool shows_live_line(int descriptor) {
  return isatty(descriptor) == 1 && environment("OMPI_COMM_WORLD_SIZE").empty() && environment("TERM") != "dumb";
}

bool shows_colour(int descriptor) { return shows_live_line(descriptor) && environment("NO_COLOR").empty(); }

bool locale_is_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string_view value = environment(name);
    if (value.empty()) continue;
    const std::string_view set = value.substr(std::min(value.find('.'), value.size()));
    return set.starts_with(".UTF-8") || set.starts_with(".utf8") || set.starts_with(".utf-8");
  }
  return false;
}

size_t terminal_width(int descriptor) {
  winsize size{};
  const bool known = ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
  return known ? size.ws_col : 80;
}

std::string_view fit(std::string_view text, size_t columns) {
  size_t end = 0;
  for (; end < text.size(); ++end) {
    const bool begins_character = (static_cast<unsigned char>(text[end]) & 0xC0) != 0x80;
    if (begins_character && columns-- == 0) break;
  }
  return text.substr(0, end);
}

std::string bar_text(double fraction, size_t columns) {
  const size_t inner = columns - 2;
  const auto filled = static_cast<size_t>(std::clamp(fraction, 0.0, 1.0) * static_cast<double>(inner));
  return fmt::format("[{:<{}}]", std::string(filled, '='), inner);
}

LiveLine::LiveLine(std::FILE* stream)
    : stream_(stream), active_(shows_live_line(fileno(stream))), colour_(shows_colour(fileno(stream))) {}

LiveLine::~LiveLine() { clear(); }

size_t LiveLine::width() const { return terminal_width(fileno(stream_)) - 1; }  // a wrapped line cannot be replaced

void LiveLine::show(std::string_view text) {
  if (!active_) return;
  const std::lock_guard lock(mutex_);
  std::string line = fmt::format("\r{}\033[K", fit(text, width()));
  if (const size_t bar = line.find("[="); colour_ && bar != std::string::npos) {
    const size_t end = line.find_first_not_of('=', bar + 1);
    line.insert(end, plain);
    line.insert(bar + 1, green);
  }
  std::fwrite(line.data(), 1, line.size(), stream_);
  std::fflush(stream_);
  shown_ = true;
}

void LiveLine::show(const ProgressState& state) {
  std::string left = fmt::format("  {:3.0f} %", std::floor(100 * state.done));
  if (state.seconds_left >= 0) left += "  left " + duration(state.seconds_left);
  const std::string what = without_controls(state.what);
  const size_t used = what.size() + left.size() + 2, room = width() > used ? width() - used : 0;
  const std::string bar = room < narrowest_bar ? "" : "  " + bar_text(state.done, std::min(room, widest_bar));
  show(what + bar + left);
}

void LiveLine::clear() {
  const std::lock_guard lock(mutex_);
  if (!shown_) return;
  std::fputs("\r\033[K", stream_);
  std::fflush(stream_);
  shown_ = false;
}

}  // namespace llmtrain
