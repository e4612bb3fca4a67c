#pragma once
// A token file is created with its final sizes under a temporary name, filled by any thread of any rank at known
// offsets, and renamed when whole.

#include <cstdint>
#include <span>
#include <string>

#include "core/files/file_handle.hpp"
#include "data/files/token_file.hpp"
#include "data/files/token_format.hpp"

namespace llmtrain {

/// Writes ids and masks into a token file that was created by this or another process. write() is safe for threads.
class TokenRegionWriter {
 public:
  struct Place {
    std::string path;
    token_format::Region tokens;
    token_format::Region mask;
  };
  explicit TokenRegionWriter(const Place& place) : place_(place), file_(FileHandle::open_to_write(place.path)) {}

  void write(int64_t begin, std::span<const int32_t> ids) const;
  void write_mask(int64_t begin, std::span<const uint8_t> mask) const;
  void sync() const { file_.sync(); }

 private:
  Place place_;
  FileHandle file_;
};

class TokenFileWriter {
 public:
  /// Creates <path>.<unique>.tmp with all attributes and the documents; sizes are those of `info` (tokens, has_mask).
  /// `documents` are n + 1 offsets. Main thread only.
  TokenFileWriter(const std::string& path, const TokenFileInfo& info, std::span<const uint64_t> documents);
  /// Removes the temporary file when it was not published.
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  const TokenRegionWriter::Place& place() const { return place_; }
  /// Everything is written: makes it durable and gives it its name.
  void publish();

 private:
  std::string path_;
  TokenRegionWriter::Place place_;
  bool published_ = false;
};

}  // namespace llmtrain
