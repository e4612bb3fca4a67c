#pragma once
// Files compressed by gzip (of several members, also with zeros behind them, as tapes and object stores pad a file) and
// zstd (of several frames), read from beginning to end.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/files/file_handle.hpp"

namespace llmtrain {

enum class Compression : uint8_t { none, gzip, zstd };

/// Returns whether the name ends so behind at least one other character, in capital or small letters.
bool has_ending(std::string_view path, std::string_view ending);
/// By the ending of the name: .gz, .zst.
Compression compression_of(std::string_view path);
/// By the first bytes, else by the ending of the name.
Compression compression_of(const FileHandle& file);
/// The name without the ending of its compression.
std::string_view uncompressed_name(std::string_view path);

/// Memory is bounded whatever the file says (at most 128 MiB, zstd's largest usual window). UserError(bad_content) with
/// the compressed byte for what is corrupt, ends too early, or gives more than `limit` bytes.
class CompressedReader {
 public:
  CompressedReader(const FileHandle& file, Compression compression, int64_t limit);
  ~CompressedReader();
  CompressedReader(const CompressedReader&) = delete;
  CompressedReader& operator=(const CompressedReader&) = delete;

  /// The next `count` bytes; fewer only at the end, 0 from then on.
  int64_t read(char* data, int64_t count);
  /// Bytes of the file that are used up.
  int64_t position() const;

  class Decoder;  ///< of one format

 private:
  bool fill();
  [[noreturn]] void refuse(const std::string& what) const;

  const FileHandle& file_;
  int64_t limit_;
  int64_t given_ = 0;
  std::string input_;
  size_t input_used_ = 0;
  int64_t input_offset_ = 0;  // of the input in the file
  bool ended_ = false;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace llmtrain
