#include "core/files/folder_handle.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "core/files/opened_files.hpp"

namespace llmtrain {

FolderHandle FolderHandle::open(const std::string& path, Links links) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) {
    const char* what = errno == ENOTDIR ? "it is a file, not a folder: give its folder" : std::strerror(errno);
    throw UserError(ExitCode::missing_input, fmt::format("{}: cannot read it: {}", path, what));
  }
  return FolderHandle(descriptor, path, links);
}

FolderHandle::~FolderHandle() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

FolderHandle::FolderHandle(FolderHandle&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)), links_(other.links_) {}

FolderHandle& FolderHandle::operator=(FolderHandle&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  std::swap(links_, other.links_);
  return *this;
}

bool FolderHandle::has(const std::string& name) const {
  struct stat status {};
  return fstatat(descriptor_, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0;
}

std::string FolderHandle::why_unreadable(const std::string& name, int error) const {
  std::array<char, 256> target{};
  const ssize_t length = readlinkat(descriptor_, name.c_str(), target.data(), target.size());
  if (length < 0) return std::strerror(error);
  const std::string shown = printable(std::string(target.data(), static_cast<size_t>(length)));
  if (error == ENOENT) {
    return fmt::format(
        "it is a symbolic link to {}, which does not exist. Copy a Hugging Face snapshot with the files that it links "
        "to (cp -rL)",
        shown);
  }
  return fmt::format("it is a symbolic link to {}: {}", shown, std::strerror(error));
}

std::vector<std::string> FolderHandle::names() const {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(path_, error), end; !error && entry != end; entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (!name.starts_with('.')) names.push_back(std::move(name));
  }
  if (error) throw UserError(ExitCode::missing_input, fmt::format("{}: cannot read it: {}", path_, error.message()));
  std::ranges::sort(names);
  return names;
}

FileHandle FolderHandle::open_to_read(const std::string& name) const {
  const std::string path = path_of(name);
  const size_t slash = name.find('/');
  if (slash != std::string::npos && links_ == Links::refused) {  // "FOLDER/FILE" in a checkpoint
    const std::string folder = name.substr(0, slash);
    check_file_name(folder, path_);
    const int inside = ::openat(descriptor_, folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (inside < 0) {
      throw UserError(ExitCode::missing_input, fmt::format("{}: cannot read it: {}", path, std::strerror(errno)));
    }
    return FolderHandle(inside, path_of(folder), links_).open_to_read(name.substr(slash + 1));
  }
  check_file_name(name, path_);
  // O_NONBLOCK keeps the open of a pipe from waiting for a writer.
  const int no_links = links_ == Links::refused ? O_NOFOLLOW : 0;
  ++opened_files();
  const int descriptor = ::openat(descriptor_, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | no_links);
  if (descriptor < 0 && no_links != 0 && errno == ELOOP) {
    throw UserError(ExitCode::bad_content, path + ": it is a symbolic link, which a checkpoint must not contain");
  }
  if (descriptor < 0) {
    throw UserError(ExitCode::missing_input, fmt::format("{}: cannot read it: {}", path, why_unreadable(name, errno)));
  }
  FileHandle handle(descriptor, path);
  if (!handle.is_regular()) throw UserError(ExitCode::bad_content, path + ": not a regular file");
  return handle;
}

void check_file_name(std::string_view name, const std::string& place) {
  const bool control = std::ranges::any_of(name, [](char c) { return static_cast<unsigned char>(c) < 0x20; });
  if (name.empty() || name == "." || name == ".." || name.size() > 255 || control ||
      name.find_first_of("/\\") != std::string_view::npos) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: {} is not the name of a file in this folder", place, printable(name)));
  }
}

}  // namespace llmtrain
