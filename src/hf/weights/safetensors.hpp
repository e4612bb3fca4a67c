#pragma once
// The safetensors format: 8 bytes little-endian length of the header, the header (JSON: name -> dtype, shape,
// data_offsets; __metadata__), then the tensors, row-major, without holes. The reader does not trust the file.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/file_handle.hpp"

namespace llmtrain {

inline constexpr int64_t max_safetensors_header = 100'000'000;  ///< bytes, as in the reference implementation
inline constexpr int64_t max_tensors_of_file = 1'000'000;
inline constexpr size_t max_tensor_rank = 8;

/// All dtypes of the format, in its order.
enum class StoredType : uint8_t {
  BOOL,
  F4,
  F6_E2M3,
  F6_E3M2,
  U8,
  I8,
  F8_E5M2,
  F8_E4M3,
  F8_E8M0,
  F8_E4M3FNUZ,
  F8_E5M2FNUZ,
  I16,
  U16,
  F16,
  BF16,
  I32,
  U32,
  F32,
  C64,
  F64,
  I64,
  U64
};
std::string_view name_of(StoredType type);
int bits_of(StoredType type);

struct StoredTensor {
  std::string name;
  StoredType type = StoredType::F32;
  std::vector<int64_t> shape;
  int64_t begin = 0;  ///< offset in the file, in bytes
  int64_t end = 0;

  int64_t numel() const;  ///< fits after the header was checked
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  ///< in file order
  std::map<std::string, std::string> metadata;
};

/// Reads and checks the header. Throws UserError(bad_content) with the problem and its location for an invalid file.
SafetensorsHeader read_safetensors_header(const FileHandle& file);

/// Returns, for example, "[2, 3]".
std::string shape_text(const std::vector<int64_t>& shape);

/// Writes a new file: the header at once, then blocks of the tensors' elements in any order. Header and order equal
/// those of the reference implementation, byte for byte: larger types first, then by name.
class SafetensorsWriter {
 public:
  /// Uses name, type and shape of `tensors`; write() takes those of type F32, BF16 or F16.
  SafetensorsWriter(const std::string& path, std::vector<StoredTensor> tensors,
                    const std::map<std::string, std::string>& metadata);

  int64_t bytes() const { return bytes_; }  ///< size of the whole file
  /// Writes elements [first, first + count) of a tensor, row-major as stored. Thread-safe.
  void write(const std::string& name, int64_t first, const float* values, int64_t count) const;
  /// Writes bytes [first, first + count) of a tensor of any type. Thread-safe.
  void write_bytes(const std::string& name, int64_t first, const void* bytes, int64_t count) const;
  /// Ends the writing and makes the file durable.
  void finish() const;

 private:
  const StoredTensor& find(const std::string& name) const;

  std::map<std::string, StoredTensor> tensors_;
  int64_t bytes_ = 0;
  FileHandle file_;
};

}  // namespace llmtrain
