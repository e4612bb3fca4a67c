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

}  // namespace llmtrain
