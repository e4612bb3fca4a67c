#pragma once
// Writes a GGUF file, version 3, little-endian: metadata, the list of tensors, and their elements. The format is that
// of ggml's docs/gguf.md.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/file_handle.hpp"

namespace llmtrain {

/// Types of tensors, by ggml's number. Q8_0: blocks of 32 elements, an fp16 scale and 32 signed bytes each.
enum class GgufType : uint32_t { F32 = 0, F16 = 1, Q8_0 = 8, BF16 = 30 };
inline constexpr int64_t q8_block = 32;  ///< elements

/// Keys and values in the order in which they are added.
class GgufMetadata {
 public:
  void add(std::string_view key, uint32_t value);
  void add(std::string_view key, float value);
  void add(std::string_view key, bool value);
  void add(std::string_view key, std::string_view value);
  void add(std::string_view key, const char* value) { add(key, std::string_view(value)); }
  void add(std::string_view key, const std::vector<std::string>& values);
  void add(std::string_view key, const std::vector<float>& values);
  void add(std::string_view key, const std::vector<int32_t>& values);

  uint64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void begin(std::string_view key, uint32_t type);

  std::string bytes_;
  uint64_t count_ = 0;
};

/// A matrix [rows, columns], row-major, or a vector of `rows` elements (columns = 0), or equal matrices one below the
/// other, `rows` rows together.
struct GgufTensor {
  std::string name;
  GgufType type = GgufType::F32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t matrices = 0;  ///< of an array [matrices, rows / matrices, columns]; 0: it is a matrix or a vector

  int64_t numel() const { return columns == 0 ? rows : rows * columns; }
  int64_t bytes() const;
};

/// The file appears under its name when it is published.
class GgufWriter {
 public:
  /// Throws UserError(cannot_create) if there is a file of this name, unless `overwrite`.
  GgufWriter(std::string path, bool overwrite, const GgufMetadata& metadata, std::vector<GgufTensor> tensors);
  /// Removes an unpublished file.
  ~GgufWriter();
  GgufWriter(const GgufWriter&) = delete;
  GgufWriter& operator=(const GgufWriter&) = delete;

  /// Writes elements [first, first + count) of a tensor, whole blocks of Q8_0. UserError(bad_content) for a finite
  /// value that does not fit fp16.
  void write(size_t tensor, int64_t first, const float* values, int64_t count) const;
  void publish();

 private:
  std::string path_, partial_;
  std::vector<GgufTensor> tensors_;
  std::vector<int64_t> offsets_;  ///< of the tensors, bytes from the start of the file
  int64_t bytes_ = 0;             ///< size of the whole file
  FileHandle file_;
  bool published_ = false;
};

}  // namespace llmtrain
