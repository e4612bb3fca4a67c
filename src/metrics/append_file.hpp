#pragma once
#include <string>
#include <string_view>

namespace llmtrain {

/// Append-only file; every append is one write(2), so that neither a reader nor a crash ever sees half of an earlier
/// line.
class AppendFile {
 public:
  explicit AppendFile(const std::string& path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Throws UserError(io) with the path and the cause if the bytes do not fit.
  void append(std::string_view bytes);
  void sync();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int file_ = -1;
};

}  // namespace llmtrain
