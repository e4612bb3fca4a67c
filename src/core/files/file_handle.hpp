#pragma once
// Positioned reads and writes of plain files, safe for several threads.

#include <cstdint>
#include <string>
#include <string_view>

namespace llmtrain {

/// Owner of a file descriptor. Failures are UserErrors that name the file.
class FileHandle {
 public:
  FileHandle() = default;
  static FileHandle open_to_read(const std::string& path);
  /// Opens an existing file.
  static FileHandle open_to_write(const std::string& path);
  /// Creates a new file with the permissions of the umask; cannot_create when it exists.
  static FileHandle create(const std::string& path);
  /// Creates a file without a name in `folder`: it vanishes with its handle, also when the process is killed.
  static FileHandle create_unnamed(const std::string& folder);

  ~FileHandle();
  FileHandle(FileHandle&& other) noexcept;
  FileHandle& operator=(FileHandle&& other) noexcept;

  const std::string& path() const { return path_; }
  /// Name of the file in messages, if it differs from the path.
  void show_as(const std::string& name) { path_ = name; }
  int64_t size() const;
  bool is_regular() const;
  int64_t modified() const;  ///< time of modification, nanoseconds since the epoch
  /// Reads exactly `count` bytes; UserError(io) when the file is shorter.
  void read(int64_t offset, int64_t count, void* data) const;
  /// Reads up to `count` bytes and returns how many the file has.
  int64_t read_some(int64_t offset, int64_t count, void* data) const;
  /// Reads the whole file; UserError(bad_content) when it has more than `most` bytes.
  std::string read_text(int64_t most) const;
  /// Hint: reads will be far apart, so that read-ahead is useless.
  void expect_scattered_reads() const;
  void write(int64_t offset, int64_t count, const void* data) const;
  void sync() const;
  /// Reserves disk space for the first `bytes`; unwritten bytes read as zeros. Returns false when there is no space
  /// (disk full or quota); true also where the file system cannot reserve.
  bool reserve(int64_t bytes) const;
  /// Hints: the system may start now to write what sync() will wait for, or to read ahead.
  void begin_sync(int64_t offset, int64_t count) const;
  void begin_read(int64_t offset, int64_t count) const;
  /// Hint: bypasses the page cache from here on, where the file system can. Memory, offsets and counts must then be
  /// multiples of 4096.
  void bypass_cache() const;
  /// Hint: drops synced bytes from the page cache, so that reads come from the disk.
  void drop_cached() const;

 private:
  friend class FolderHandle;
  FileHandle(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  // Builds the error by its number.
  [[noreturn]] void fail_to_read(int error) const;
  [[noreturn]] void fail_to_write(int64_t count, int error) const;
  int descriptor_ = -1;
  std::string path_;
};

/// Prints the output of a command. UserError(io) if part of it could not be written.
void write_standard_output(std::string_view text);
/// Builds the error for a file that could not be created: UserError "path: what: why", io where the disk is full or
/// broken.
[[noreturn]] void fail_to_create(const std::string& path, std::string_view what, int error);
/// Syncs the folder, so that a rename in it survives a power failure.
void sync_folder(const std::string& folder);
/// Parent folder of a path, "." when it has none.
std::string folder_of(const std::string& path);

}  // namespace llmtrain
