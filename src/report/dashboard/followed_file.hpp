#pragma once
// Lines of a file to which another process appends.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace llmtrain {

class FollowedFile {
 public:
  explicit FollowedFile(std::filesystem::path path) : path_(std::move(path)) {}

  /// Calls take(line) for every complete line that is new, without its end. If the file has become shorter, another or
  /// unreadable, `restart` is called first, and the lines begin again. Returns true if either was called. Lines of more
  /// than 16 MiB are left out.
  bool read(const std::function<void()>& restart, const std::function<void(std::string_view)>& take);

  /// Reason why the last read failed, or "".
  const std::string& problem() const { return problem_; }

 private:
  bool is_continued(int file) const;
  bool read_lines(int file, const std::function<void(std::string_view)>& take);

  std::filesystem::path path_;
  int64_t end_ = 0;   ///< offset after the last complete line
  std::string last_;  ///< last bytes before `end_`, by which another file is noticed
  std::string problem_;
};

}  // namespace llmtrain
