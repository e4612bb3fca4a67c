#pragma once
// Atomic creation of files (all or nothing, whenever the process ends): a temporary name, fsync, rename.

#include <string>
#include <string_view>

#include "core/files/file_handle.hpp"

namespace llmtrain {

/// A unique name beside `path`: "<path>.<host>-<process>-<time>-<number>.tmp".
std::string temporary_path(const std::string& path);

/// A file under a temporary name until it is published; an unpublished one is removed.
class WholeFile {
 public:
  /// UserError(cannot_create).
  explicit WholeFile(const std::string& path);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  const FileHandle& file() const { return file_; }
  /// Syncs the file and renames it to its name, replacing an older one. UserError: io, cannot_create.
  void publish();
  /// Likewise, but keeps a file that is there already; false then.
  bool publish_if_absent();

 private:
  std::string path_;
  std::string temporary_;
  FileHandle file_;
  bool published_ = false;
};

void write_whole_file(const std::string& path, std::string_view content);

/// Calls rename(2) and syncs the folder. UserError(cannot_create).
void publish_file(const std::string& temporary, const std::string& path);

}  // namespace llmtrain
