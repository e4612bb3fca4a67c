#pragma once
// Serialization of arrays and texts that ranks send each other, as one string of bytes.

#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace llmtrain {

/// Reads values in the order of writing.
class Message {
 public:
  explicit Message(std::string bytes = {}) : bytes_(std::move(bytes)) {}
  const std::string& bytes() const { return bytes_; }
  bool at_end() const { return position_ == bytes_.size(); }

  template <class T>
  void put(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    put_bytes(values.data(), values.size() * sizeof(T));
  }
  void put(const std::string& text) { put_bytes(text.data(), text.size()); }

  /// Appends to `values`.
  template <class T>
  void take(std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    const uint64_t count = take_length() / sizeof(T);
    const size_t before = values.size();
    values.resize(before + count);
    if (count > 0) std::memcpy(values.data() + before, bytes_.data() + position_, count * sizeof(T));
    position_ += count * sizeof(T);
  }
  void take(std::string& text) {
    const uint64_t length = take_length();
    text = bytes_.substr(position_, length);
    position_ += length;
  }

 private:
  void put_bytes(const void* data, uint64_t length) {
    bytes_.append(reinterpret_cast<const char*>(&length), sizeof(length));
    if (length > 0) bytes_.append(static_cast<const char*>(data), length);
  }
  uint64_t take_length() {
    uint64_t length = 0;
    LLMTRAIN_CHECK(position_ + sizeof(length) <= bytes_.size(), "message ends early");
    std::memcpy(&length, bytes_.data() + position_, sizeof(length));
    position_ += sizeof(length);
    LLMTRAIN_CHECK(length <= bytes_.size() - position_, "message ends early");
    return length;
  }

  std::string bytes_;
  size_t position_ = 0;
};

}  // namespace llmtrain
