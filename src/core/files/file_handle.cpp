#include "core/files/file_handle.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "core/activity.hpp"
#include "core/error.hpp"
#include "core/files/opened_files.hpp"
#include "core/machine.hpp"

namespace llmtrain {
namespace {

struct stat status_of(int descriptor, const std::string& path) {
  struct stat status {};
  if (fstat(descriptor, &status) != 0) {
    throw UserError(ExitCode::io, fmt::format("{}: {}", path, std::strerror(errno)));
  }
  return status;
}

}  // namespace

FileHandle FileHandle::open_to_read(const std::string& path) {
  // O_NONBLOCK keeps the open of a pipe from waiting for a writer.
  ++opened_files();
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    throw UserError(ExitCode::missing_input, fmt::format("{}: cannot read it: {}", path, std::strerror(errno)));
  }
  FileHandle handle(descriptor, path);
  if (!handle.is_regular()) {
    throw UserError(ExitCode::missing_input, path + ": not a regular file (a folder needs a pattern such as folder/*)");
  }
  return handle;
}

FileHandle FileHandle::open_to_write(const std::string& path) {
  ++opened_files();
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (descriptor < 0) fail_to_create(path, "cannot write it (every node must see its folder)", errno);
  return FileHandle(descriptor, path);
}

FileHandle FileHandle::create(const std::string& path) {
  ++opened_files();
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) fail_to_create(path, "cannot create it", errno);
  return FileHandle(descriptor, path);
}

FileHandle FileHandle::create_unnamed(const std::string& folder) {
  static std::atomic<int> counter{0};
  const std::string path = fmt::format("{}/.{}-{}-{}.tmp", folder, host_name(), getpid(), counter++);
  FileHandle handle = create(path);
  ::unlink(path.c_str());
  return handle;
}

FileHandle::~FileHandle() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

FileHandle::FileHandle(FileHandle&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), path_(std::move(other.path_)) {}

FileHandle& FileHandle::operator=(FileHandle&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(path_, other.path_);
  return *this;
}

bool FileHandle::is_regular() const { return S_ISREG(status_of(descriptor_, path_).st_mode); }

int64_t FileHandle::size() const { return status_of(descriptor_, path_).st_size; }

int64_t FileHandle::modified() const {
  const struct stat status = status_of(descriptor_, path_);
  return int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

void FileHandle::fail_to_read(int error) const {
  throw UserError(ExitCode::io, fmt::format("{}: reading failed: {}", path_, std::strerror(error)));
}

void FileHandle::fail_to_write(int64_t count, int error) const {
  throw UserError(ExitCode::io, fmt::format("{}: writing {} bytes failed: {}", path_, count,
                                            error != 0 ? std::strerror(error) : "nothing was written"));
}

int64_t FileHandle::read_some(int64_t offset, int64_t count, void* data) const {
  int64_t done = 0;
  while (done < count) {
    const FileCall call;
    const ssize_t n =
        pread(descriptor_, static_cast<char*>(data) + done, static_cast<size_t>(count - done), offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_to_read(errno);
    if (n == 0) break;
    done += n;
  }
  return done;
}

void FileHandle::read(int64_t offset, int64_t count, void* data) const {
  if (read_some(offset, count, data) != count) {
    throw UserError(ExitCode::io, path_ + ": the file has become shorter while it was read");
  }
}

std::string FileHandle::read_text(int64_t most) const {
  const int64_t bytes = size();
  if (bytes > most) {
    throw UserError(ExitCode::bad_content,
                    fmt::format("{}: the file has {} bytes, and at most {} are allowed", path_, bytes, most));
  }
  std::string text(static_cast<size_t>(bytes), '\0');
  read(0, bytes, text.data());
  return text;
}

void FileHandle::expect_scattered_reads() const {
  ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_RANDOM);  // a hint: failure costs nothing
}

void FileHandle::write(int64_t offset, int64_t count, const void* data) const {
  int64_t done = 0;
  while (done < count) {
    const FileCall call;
    const ssize_t n =
        pwrite(descriptor_, static_cast<const char*>(data) + done, static_cast<size_t>(count - done), offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail_to_write(count, n < 0 ? errno : 0);
    done += n;
  }
}

void FileHandle::sync() const {
  const FileCall call;
  if (fsync(descriptor_) != 0) {
    throw UserError(ExitCode::io, fmt::format("{}: writing failed: {}", path_, std::strerror(errno)));
  }
}

void FileHandle::begin_sync(int64_t offset, int64_t count) const {
  const FileCall call;
  ::sync_file_range(descriptor_, offset, count, SYNC_FILE_RANGE_WRITE);  // a hint: sync() writes the rest
}

bool FileHandle::reserve(int64_t bytes) const {
  const FileCall call;
  int result = 0;
  do {
    result = ::fallocate(descriptor_, 0, 0, bytes);
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return true;
  if (errno == ENOSPC || errno == EDQUOT) return false;
  throw UserError(ExitCode::io, fmt::format("{}: reserving {} bytes failed: {}", path_, bytes, std::strerror(errno)));
}

void FileHandle::begin_read(int64_t offset, int64_t count) const {
  const FileCall call;
  ::posix_fadvise(descriptor_, offset, count, POSIX_FADV_WILLNEED);
}

void FileHandle::bypass_cache() const {
  const int flags = ::fcntl(descriptor_, F_GETFL);
  if (flags < 0 || ::fcntl(descriptor_, F_SETFL, flags | O_DIRECT) != 0) return;
  constexpr size_t block = 4096;
  alignas(block) std::array<char, block> probe;
  // the file system accepted O_DIRECT but cannot read with it
  if (::pread(descriptor_, probe.data(), block, 0) < 0) ::fcntl(descriptor_, F_SETFL, flags);
}

void FileHandle::drop_cached() const { ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_DONTNEED); }

void write_standard_output(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0) return;
  throw UserError(ExitCode::io, fmt::format("standard output: {}", std::strerror(errno)));
}

void fail_to_create(const std::string& path, std::string_view what, int error) {
  const bool disk = error == ENOSPC || error == EDQUOT || error == EIO;
  const char* reason = error == ENOENT ? "its folder does not exist" : std::strerror(error);
  throw UserError(disk ? ExitCode::io : ExitCode::cannot_create, fmt::format("{}: {}: {}", path, what, reason));
}

void sync_folder(const std::string& folder) {
  const FileCall call;
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return;  // not readable: nothing more can be done
  ::fsync(descriptor);         // some file systems refuse it for folders
  ::close(descriptor);
}

std::string folder_of(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace llmtrain
