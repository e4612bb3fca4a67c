#include "report/run_reader.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>

#include "core/error.hpp"
#include "core/machine.hpp"

namespace llmtrain {

namespace {

constexpr int64_t block = int64_t{1} << 20;
constexpr size_t longest_line = size_t{16} << 20;
constexpr size_t kept_bytes = 256;

/// Reads up to `count` bytes; less at the end of the file or after an error.
std::string read_at(int file, int64_t offset, int64_t count) {
  std::string bytes(static_cast<size_t>(count), '\0');
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got =
        pread(file, bytes.data() + filled, bytes.size() - filled, offset + static_cast<int64_t>(filled));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    filled += static_cast<size_t>(got);
  }
  bytes.resize(filled);
  return bytes;
}

/// Opens a regular file, or returns -1. A pipe of that name must not block.
int open_file(const std::filesystem::path& path) {
  const int file = open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
  struct stat status {};
  if (file < 0 || (fstat(file, &status) == 0 && S_ISREG(status.st_mode))) return file;
  close(file);
  errno = EINVAL;
  return -1;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\r";
  const size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

/// Appends an indented line to the value: to an item of a list, or to the half of a text before a backslash.
void continue_value(std::string& value, std::string_view line) {
  if (value.ends_with('\\')) {
    value.pop_back();
  } else {
    value += ' ';
  }
  value += line;
}

namespace fs = std::filesystem;

constexpr int64_t most_deck_bytes = int64_t{4} << 20;
constexpr int64_t most_log_bytes = int64_t{1} << 20;
constexpr size_t most_line_bytes = 1000;
constexpr auto longest_silence = std::chrono::seconds(60);  // a status file changes every 2 to 10 seconds

/// Reads up to `most` bytes of a regular file, its last ones if `from_end`; "" if it cannot be read. Links are not
/// followed: they could lead out of the run.
std::string read_part(const fs::path& path, int64_t most, bool from_end) {
  std::error_code error;
  if (!fs::is_regular_file(fs::symlink_status(path, error))) return {};
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) return {};
  const int64_t size = file.tellg();
  file.seekg(from_end ? std::max<int64_t>(size - most, 0) : 0);
  std::string bytes(static_cast<size_t>(std::clamp<int64_t>(size, 0, most)), '\0');
  file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  return bytes;
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, std::min(end, most_line_bytes)));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

/// Returns N of a console line "step 12/N ...", or 0.
int64_t total_of(const std::string& line) {
  const size_t slash = line.find('/');
  int64_t total = 0;
  if (!line.starts_with("step ") || slash == std::string::npos) return 0;
  std::from_chars(line.data() + slash + 1, line.data() + line.size(), total);
  return total;
}

/// Returns whether `owner`, "host H, process P...", is a process of this machine that exists.
bool is_alive(const std::string& owner) {
  const std::string begin = fmt::format("host {}, process ", host_name());
  pid_t process = 0;
  if (!owner.starts_with(begin)) return false;
  std::from_chars(owner.data() + begin.size(), owner.data() + owner.size(), process);
  return process > 0 && (kill(process, 0) == 0 || errno == EPERM);
}

bool is_run(const fs::path& folder) {
  std::error_code error;
  return std::ranges::any_of(std::array{"deck.ini", "ledger.jsonl", "metrics.jsonl"}, [&](const char* name) {
    return fs::is_regular_file(fs::symlink_status(folder / name, error));
  });
}

/// The path with a name at its end, as RunReader::name wants it.
fs::path with_name(const std::string& argument) {
  fs::path path = fs::path(argument).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  std::error_code error;
  if (path.filename() != "." && path.filename() != "..") return path;
  const fs::path whole = fs::canonical(path, error);
  return error ? path : whole;
}

constexpr int max_levels = 3;        ///< of folders below the one that is watched
constexpr int max_folders = 10'000;  ///< that a search looks at

/// Folders of a run that hold no runs and may hold many entries.
bool is_left_out(const fs::path& folder) {
  const std::string name = folder.filename().string();
  return name.starts_with('.') || name == "checkpoints" || name == "status";
}

void add_runs(const fs::path& folder, int level, int& looked_at, std::vector<fs::path>& runs) {
  if (is_run(folder)) runs.push_back(folder);
  if (level == max_levels || looked_at > max_folders) return;
  std::error_code error;
  std::vector<fs::path> inside;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    const bool follows = level == 0;  // a link in a folder of runs is a run; deeper ones could lead in a circle
    const fs::file_status status = follows ? entry->status(ignored) : entry->symlink_status(ignored);
    if (!fs::is_directory(status) || is_left_out(entry->path())) continue;
    if (++looked_at > max_folders) break;
    inside.push_back(entry->path());
  }
  std::ranges::sort(inside);
  for (const fs::path& one : inside) add_runs(one, level + 1, looked_at, runs);
}

/// Reads what it can: a text that is not a deck has no entries.
std::vector<DeckEntry> read_printed_deck(std::string_view text) {
  std::vector<DeckEntry> entries;
  std::string section, comment;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::string_view content = trimmed(line);
    const size_t equals = content.find('=');
    if (content.starts_with('#')) {
      comment = trimmed(content.substr(1));
    } else if (content.starts_with('[') && content.ends_with(']')) {
      section = content.substr(1, content.size() - 2);
    } else if (!content.empty() && line.front() == ' ' && !entries.empty()) {
      continue_value(entries.back().value, content);
    } else if (equals != std::string_view::npos) {
      // Printed values have no bare semicolon. A value without a comment at its end has one in the line before.
      const size_t semicolon = content.find(" ;", equals);
      DeckEntry entry{section, std::string(trimmed(content.substr(0, equals))), "", comment};
      entry.value = trimmed(content.substr(equals + 1, std::min(semicolon, content.size()) - equals - 1));
      if (semicolon != std::string_view::npos) entry.provenance = trimmed(content.substr(semicolon + 2));
      entries.push_back(std::move(entry));
    }
  }
  return entries;
}

}  // namespace

bool FollowedFile::read(const std::function<void()>& restart, const std::function<void(std::string_view)>& take) {
  const int file = open_file(path_);
  problem_ = file < 0 ? path_.filename().string() + ": " + std::strerror(errno) : "";
  bool changed = false;
  if (end_ > 0 && (file < 0 || !is_continued(file))) {
    end_ = 0;
    last_.clear();
    restart();
    changed = true;
  }
  if (file < 0) return changed;
  changed |= read_lines(file, take);
  close(file);
  return changed;
}

bool FollowedFile::is_continued(int file) const {
  const auto count = static_cast<int64_t>(last_.size());
  return read_at(file, end_ - count, count) == last_;
}

bool FollowedFile::read_lines(int file, const std::function<void(std::string_view)>& take) {
  std::string begun;  // the line that is being read; empty while a line that is too long is left out
  int64_t offset = end_;
  bool too_long = false, changed = false;
  for (std::string bytes; !(bytes = read_at(file, offset, block)).empty();) {
    for (size_t start = 0; start < bytes.size();) {
      const size_t end = std::min(bytes.find('\n', start), bytes.size());
      too_long |= begun.size() + end - start > longest_line;
      if (too_long) begun.clear();
      if (!too_long) begun.append(bytes, start, end - start);
      start = end + 1;
      if (end == bytes.size()) break;
      if (!too_long) take(begun);
      begun.clear();
      too_long = false;
      changed = true;
      end_ = offset + static_cast<int64_t>(end) + 1;
    }
    offset += static_cast<int64_t>(bytes.size());
  }
  const int64_t kept = std::min<int64_t>(end_, kept_bytes);
  if (changed) last_ = read_at(file, end_ - kept, kept);
  return changed;
}

std::vector<fs::path> find_runs(const std::vector<std::string>& folders) {
  std::vector<fs::path> runs;
  for (const std::string& folder : folders) {
    int looked_at = 0;
    add_runs(with_name(folder), 0, looked_at, runs);
  }
  return runs;
}

RunReader::RunReader(fs::path folder)
    : folder_(std::move(folder)), metrics_file_(folder_ / "metrics.jsonl"), ledger_file_(folder_ / "ledger.jsonl") {}

bool RunReader::refresh() {
  bool changed = metrics_file_.read([&] { log_ = {}; }, [&](std::string_view line) { log_.take(line); });
  changed |= ledger_file_.read([&] { ledger_ = {}; }, [&](std::string_view line) { ledger_.take(line); });
  changed |= read_deck();
  std::error_code error;
  const bool finished = fs::exists(folder_ / "finished.json", error);
  std::string problem = find_problem();
  changed |= finished != finished_ || problem != problem_;
  finished_ = finished;
  problem_ = std::move(problem);
  last_step_ = ledger_.last_step > 0 ? ledger_.last_step : log_.last_step;
  if (changed) max_steps_ = find_max_steps();
  return changed;
}

bool RunReader::read_deck() {
  std::string text = read_part(folder_ / "deck.ini", most_deck_bytes, false);
  if (text == deck_text_) return false;
  deck_text_ = std::move(text);
  deck_ = read_printed_deck(deck_text_);
  return true;
}

std::string RunReader::deck_value(std::string_view section, std::string_view key) const {
  const auto found =
      std::ranges::find_if(deck_, [&](const DeckEntry& entry) { return entry.section == section && entry.key == key; });
  return found == deck_.end() ? "" : found->value;
}

/// The deck has it, or, with epochs, the console's last line.
int64_t RunReader::find_max_steps() const {
  int64_t steps = 0;
  const std::string value = deck_value("run", "max_steps");
  std::from_chars(value.data(), value.data() + value.size(), steps);
  if (steps > 0) return steps;
  const std::vector<std::string> lines = log_tail(200);
  const auto last =
      std::find_if(lines.rbegin(), lines.rend(), [](const std::string& line) { return total_of(line) > 0; });
  return last == lines.rend() ? 0 : total_of(*last);
}

std::string RunReader::find_problem() const {
  std::error_code error;
  if (!fs::is_directory(folder_, error)) return fmt::format("{}: no such folder", folder_.string());
  if (!is_run(folder_)) return fmt::format("{}: the folder has no run", folder_.string());
  if (!metrics_file_.problem().empty()) {
    return fmt::format("{}/{}. The sink jsonl of log.sinks writes it", folder_.string(), metrics_file_.problem());
  }
  if (log_.bad_lines > 0) {
    return fmt::format("{}/metrics.jsonl:{}: not a line of metrics ({} of {} lines)", folder_.string(),
                       log_.first_bad_line, log_.bad_lines, log_.lines);
  }
  return {};
}

std::vector<std::string> RunReader::log_tail(size_t lines) const {
  const auto bytes = std::min<int64_t>(most_log_bytes, static_cast<int64_t>(std::min<size_t>(lines, 1 << 20)) * 1000);
  std::vector<std::string> found = split_lines(read_part(folder_ / "log.txt", bytes, true));
  if (found.size() > lines) found.erase(found.begin(), found.end() - static_cast<std::ptrdiff_t>(lines));
  return found;
}

std::vector<std::string> RunReader::log_head(size_t lines) const {
  const auto bytes = std::min<int64_t>(most_log_bytes, static_cast<int64_t>(std::min<size_t>(lines, 1 << 20)) * 1000);
  std::vector<std::string> found = split_lines(read_part(folder_ / "log.txt", bytes, false));
  if (found.size() > lines) found.resize(lines);
  return found;
}

bool RunReader::running() const {
  const std::string owner = read_part(folder_ / "lock", 512, false);  // a job that ends makes it empty
  std::error_code error;
  if (finished_ || (owner.empty() && fs::exists(folder_ / "lock", error))) return false;
  if (is_alive(owner)) return true;
  const auto changed = fs::last_write_time(folder_ / "status/rank-00000", error);
  return !error && fs::file_time_type::clock::now() - changed < longest_silence;
}

std::vector<fs::path> run_folders(const std::vector<std::string>& arguments) {
  std::vector<fs::path> runs;
  for (const std::string& argument : arguments) {
    const fs::path path = with_name(argument);
    if (is_run(path)) {
      runs.push_back(path);
      continue;
    }
    std::error_code error;
    std::vector<fs::path> inside;
    for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
      if (is_run(entry->path())) inside.push_back(entry->path());
    }
    if (inside.empty()) {
      throw UserError(ExitCode::missing_input,
                      fmt::format("{}: neither the folder of a run nor a folder of such (a run has deck.ini and "
                                  "metrics.jsonl)",
                                  argument));
    }
    std::ranges::sort(inside);
    runs.insert(runs.end(), inside.begin(), inside.end());
  }
  std::vector<fs::path> distinct;
  for (const fs::path& run : runs) {
    if (std::ranges::find(distinct, run) == distinct.end()) distinct.push_back(run);
  }
  return distinct;
}

}  // namespace llmtrain
