#pragma once
// Sequential reading of files compressed by gzip (with several members, and with trailing zeros, since tapes and object
// stores pad files) and zstd (with several frames).

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/files/file_handle.hpp"
#include "data/files/text_reader.hpp"

namespace llmtrain {

enum class Compression : uint8_t { none, gzip, zstd };

/// Returns true if the name ends so after at least one other character, in upper or lower case.
bool has_ending(std::string_view path, std::string_view ending);
/// Detects the compression by the ending of the name: .gz, .zst.
Compression compression_of(std::string_view path);
/// Detects it by the first bytes, otherwise by the ending of the name.
Compression compression_of(const FileHandle& file);
/// Returns the name without the ending of its compression.
std::string_view uncompressed_name(std::string_view path);

/// Memory is bounded whatever the file says (at most 128 MiB, the largest usual window of zstd). Throws
/// UserError(bad_content), with the compressed byte, if the data is corrupt, ends too early, or unpacks to more than
/// `limit` bytes.
class CompressedReader final : public TextReader {
 public:
  CompressedReader(const FileHandle& file, Compression compression, int64_t limit);
  ~CompressedReader() override;
  CompressedReader(const CompressedReader&) = delete;
  CompressedReader& operator=(const CompressedReader&) = delete;

  int64_t read(char* data, int64_t count) override;
  int64_t position() const override;

  class Decoder;  ///< decoder of one format

 private:
  bool fill();
  [[noreturn]] void refuse(const std::string& what) const;

  const FileHandle& file_;
  int64_t limit_;
  int64_t given_ = 0;
  std::string input_;
  size_t input_used_ = 0;
  int64_t input_offset_ = 0;  // offset of the input in the file
  bool ended_ = false;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace llmtrain
