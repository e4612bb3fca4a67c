#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/files/file_handle.hpp"
#include "hf/weights/safetensors.hpp"

namespace llmtrain {

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
