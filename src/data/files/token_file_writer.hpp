#pragma once
// Writers of token files. A file is created with its final sizes under a temporary name, any thread of any rank fills
// it at known offsets, and it is renamed when complete.

#include <cstdint>
#include <span>
#include <string>

#include "core/files/file_handle.hpp"
#include "data/files/token_file.hpp"
#include "data/files/token_format.hpp"

namespace llmtrain {

/// Writes ids and masks into a token file that this or another process has created. write() is thread-safe.
class TokenRegionWriter {
 public:
  struct Target {
    std::string path;
    token_format::Region tokens;
    token_format::Region mask;
    token_format::Region rows;
  };
  explicit TokenRegionWriter(const Target& target) : target_(target), file_(FileHandle::open_to_write(target.path)) {}

  void write(int64_t begin, std::span<const int32_t> ids) const;
  void write_mask(int64_t begin, std::span<const uint8_t> mask) const;
  void write_rows(int64_t begin, std::string_view text) const;
  void sync() const { file_.sync(); }

 private:
  Target target_;
  FileHandle file_;
};

class TokenFileWriter {
 public:
  /// Creates <path>.<unique>.tmp with all attributes and the documents; `info` gives the sizes (tokens, has_mask).
  /// `documents` has n + 1 offsets, `values` n entries if info has values, `row_offsets` n + 1 if the documents are
  /// prompts. Main thread only.
  TokenFileWriter(const std::string& path, const TokenFileInfo& info, std::span<const uint64_t> documents,
                  std::span<const float> values = {}, std::span<const uint64_t> row_offsets = {});
  /// Removes the temporary file if it was not published.
  ~TokenFileWriter();
  TokenFileWriter(const TokenFileWriter&) = delete;
  TokenFileWriter& operator=(const TokenFileWriter&) = delete;

  const TokenRegionWriter::Target& target() const { return target_; }
  /// Ends the writing: makes the file durable and gives it its name.
  void publish();

 private:
  std::string path_;
  TokenRegionWriter::Target target_;
  bool published_ = false;
};

}  // namespace llmtrain
