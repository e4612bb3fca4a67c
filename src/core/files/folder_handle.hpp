#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/file_handle.hpp"

namespace llmtrain {

/// A folder whose files are opened by untrusted names: only plain names, which cannot lead out of the folder, and
/// regular files only. Symbolic links are followed in folders of models, since the Hugging Face cache consists of them,
/// and refused in checkpoints, which this program writes without any.
class FolderHandle {
 public:
  enum class Links : uint8_t { followed, refused };
  /// Opens the folder; UserError(missing_input) when it is not a folder. The path itself may contain links.
  static FolderHandle open(const std::string& path, Links links = Links::followed);

  ~FolderHandle();
  FolderHandle(FolderHandle&& other) noexcept;
  FolderHandle& operator=(FolderHandle&& other) noexcept;

  const std::string& path() const { return path_; }
  std::string path_of(std::string_view name) const { return path_ + "/" + std::string(name); }
  /// True if an entry of this name exists, links included.
  bool has(const std::string& name) const;
  /// Names of the entries, sorted; without those that begin with a dot.
  std::vector<std::string> names() const;
  /// Opens a file. UserError: bad_content for an invalid name, a refused link and anything but a regular file;
  /// missing_input when it does not exist or the link is broken.
  FileHandle open_to_read(const std::string& name) const;

 private:
  FolderHandle(int descriptor, std::string path, Links links)
      : descriptor_(descriptor), path_(std::move(path)), links_(links) {}
  std::string why_unreadable(const std::string& name, int error) const;
  int descriptor_ = -1;
  std::string path_;
  Links links_ = Links::followed;
};

/// Throws UserError(bad_content), whose message begins with `place`, unless the name is one component: no separator,
/// not "." or "..", no NUL or other control character, at most 255 bytes.
void check_file_name(std::string_view name, const std::string& place);

}  // namespace llmtrain
