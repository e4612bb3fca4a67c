#pragma once
// Reads the fields of a protocol buffer message in order, within the given bytes.

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace llmtrain {

class ProtobufReader {
 public:
  enum class Kind : uint8_t { number, fixed64, bytes, fixed32 };

  explicit ProtobufReader(std::string_view message) : rest_(message), size_(message.size()) {}

  /// Returns false at the end, or if the next bytes are not a field: then failed() is true.
  bool next() {
    if (rest_.empty() || failed_) return false;
    uint64_t tag = 0;
    if (!varint(tag) || tag >> 3 == 0 || tag >> 3 > UINT32_MAX) return fail();
    field_ = static_cast<uint32_t>(tag >> 3);
    switch (tag & 7) {
      case 0:
        kind_ = Kind::number;
        return varint(number_) || fail();
      case 1:
        kind_ = Kind::fixed64;
        return take(8) || fail();
      case 2: {
        kind_ = Kind::bytes;
        uint64_t length = 0;
        return (varint(length) && length <= rest_.size() && take(length)) || fail();
      }
      case 5:
        kind_ = Kind::fixed32;
        return take(4) || fail();
      default:
        return fail();
    }
  }
  bool failed() const { return failed_; }
  /// Position of the next field, or of the failure.
  size_t offset() const { return size_ - rest_.size(); }

  uint32_t field() const { return field_; }
  Kind kind() const { return kind_; }
  bool is(uint32_t field, Kind kind) const { return field_ == field && kind_ == kind; }
  uint64_t number() const { return number_; }
  bool boolean() const { return number_ != 0; }
  std::string_view bytes() const { return bytes_; }
  float real() const {
    float value = 0;
    std::memcpy(&value, bytes_.data(), sizeof(value));  // little-endian, like every supported machine
    return value;
  }

 private:
  bool fail() {
    failed_ = true;
    return false;
  }
  bool take(size_t length) {
    if (length > rest_.size()) return false;
    bytes_ = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }
  bool varint(uint64_t& value) {
    value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<uint8_t>(rest_.front());
      rest_.remove_prefix(1);
      value |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }

  std::string_view rest_;
  size_t size_;
  bool failed_ = false;
  uint32_t field_ = 0;
  Kind kind_ = Kind::number;
  uint64_t number_ = 0;
  std::string_view bytes_;
};

}  // namespace llmtrain
