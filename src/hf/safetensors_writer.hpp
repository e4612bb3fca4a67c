#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/files/file_handle.hpp"
#include "hf/safetensors.hpp"

namespace llmtrain {

/// A new file: the header at once, then the elements of the tensors in any order and in pieces. Header and order are
/// those of the reference implementation, byte for byte: larger types first, then by name.
class SafetensorsWriter {
 public:
  /// Of `tensors` name, type and shape count; types are F32, BF16 or F16.
  SafetensorsWriter(const std::string& path, std::vector<StoredTensor> tensors,
                    const std::map<std::string, std::string>& metadata);

  int64_t bytes() const { return bytes_; }  ///< of the whole file
  /// Elements [first, first + count) of a tensor, row-major as stored. Safe for threads.
  void write(const std::string& name, int64_t first, const float* values, int64_t count) const;
  /// Everything is written: makes it durable.
  void finish() const;

 private:
  const StoredTensor& find(const std::string& name) const;

  std::map<std::string, StoredTensor> tensors_;
  int64_t bytes_ = 0;
  FileHandle file_;
};

}  // namespace llmtrain
