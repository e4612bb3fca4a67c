#include "report/dashboard/followed_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

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

}  // namespace llmtrain
