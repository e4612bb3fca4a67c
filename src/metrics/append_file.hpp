#pragma once
#include <string>
#include <string_view>

namespace llmtrain {

/// A file that only grows; every append is one write(2), so that a reader or a crash never sees half of an earlier
/// line.
class AppendFile {
 public:
  explicit AppendFile(const std::string& path);
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// UserError(io) with the path and the cause when the bytes do not fit.
  void append(std::string_view bytes);
  void sync();
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  int file_ = -1;
};

}  // namespace llmtrain
