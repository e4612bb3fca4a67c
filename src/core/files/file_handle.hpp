#pragma once
// Positioned reads and writes of plain files, safe for threads.

#include <cstdint>
#include <string>
#include <string_view>

namespace llmtrain {

/// Owner of a file descriptor. Failures are UserErrors that name the file.
class FileHandle {
 public:
  FileHandle() = default;
  static FileHandle open_to_read(const std::string& path);
  /// An existing file.
  static FileHandle open_to_write(const std::string& path);
  /// A new file, with the rights that the umask leaves; cannot_create when there is one.
  static FileHandle create(const std::string& path);
  /// A file without a name in `folder`: it vanishes with its handle, also when the process is killed.
  static FileHandle create_unnamed(const std::string& folder);

  ~FileHandle();
  FileHandle(FileHandle&& other) noexcept;
  FileHandle& operator=(FileHandle&& other) noexcept;

  const std::string& path() const { return path_; }
  /// The name in messages, where people know the file by another one.
  void show_as(const std::string& name) { path_ = name; }
  int64_t size() const;
  bool is_regular() const;
  int64_t modified() const;  ///< nanoseconds since the epoch
  /// Exactly `count` bytes; UserError(io) when the file is shorter than that by now.
  void read(int64_t offset, int64_t count, void* data) const;
  /// As many of `count` bytes as the file has.
  int64_t read_some(int64_t offset, int64_t count, void* data) const;
  /// The whole file; UserError(bad_content) when it has more than `most` bytes.
  std::string read_text(int64_t most) const;
  /// What is read will lie far apart: nothing is read ahead, and the page cache holds what was asked for.
  void expect_scattered_reads() const;
  void write(int64_t offset, int64_t count, const void* data) const;
  void sync() const;
  /// Space on the disk for the first `bytes`, which read as zeros where nothing was written. False when it is not
  /// there (disk full or quota); true also where the file system cannot reserve.
  bool reserve(int64_t bytes) const;
  /// The system may begin now with what sync() will wait for, or what will be read (hints).
  void begin_sync(int64_t offset, int64_t count) const;
  void begin_read(int64_t offset, int64_t count) const;
  /// Reads and writes go past the page cache from here on, where the file system can: memory, offsets and counts must
  /// then be multiples of 4096. (A hint.)
  void bypass_cache() const;
  /// What was synced is to be read from the disk again rather than from memory (a hint).
  void drop_cached() const;

 private:
  friend class FolderHandle;
  FileHandle(int descriptor, std::string path) : descriptor_(descriptor), path_(std::move(path)) {}
  // By the number of the error.
  [[noreturn]] void fail_to_read(int error) const;
  [[noreturn]] void fail_to_write(int64_t count, int error) const;
  int descriptor_ = -1;
  std::string path_;
};

/// What a command was asked to print. UserError(io): not all of it went out.
void write_standard_output(std::string_view text);
/// What was to be made is not there: UserError "path: what: why", io where the disk is full or broken.
[[noreturn]] void fail_to_create(const std::string& path, std::string_view what, int error);
/// fsync of the folder, so that a rename in it survives a power failure.
void sync_folder(const std::string& folder);
/// The folder of a path, "." when it has none.
std::string folder_of(const std::string& path);

}  // namespace llmtrain
