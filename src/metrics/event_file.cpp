#include "metrics/event_file.hpp"

#include <array>
#include <bit>
#include <cstring>

#include "core/files/file_handle.hpp"

namespace llmtrain {

namespace {

static_assert(std::endian::native == std::endian::little, "the records are written as they are in memory");

constexpr std::array<uint32_t, 256> crc32c_table = [] {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < table.size(); ++i) {
    uint32_t rest = i;
    for (int bit = 0; bit < 8; ++bit) rest = (rest >> 1) ^ ((rest & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = rest;
  }
  return table;
}();

template <class T>
std::string_view bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

constexpr int64_t head_bytes = sizeof(uint64_t) + sizeof(uint32_t);
constexpr int64_t max_payload = int64_t{64} << 20;  ///< bytes; no event of ours comes near

}  // namespace

uint32_t masked_crc32c(std::string_view bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const char c : bytes) crc = (crc >> 8) ^ crc32c_table[(crc ^ static_cast<uint8_t>(c)) & 0xFF];
  return std::rotr(~crc, 15) + 0xA282EAD8u;
}

std::string event_record(std::string_view payload) {
  const uint64_t length = payload.size();
  const uint32_t length_crc = masked_crc32c(bytes_of(length)), crc = masked_crc32c(payload);
  std::string record;
  record.reserve(payload.size() + 16);
  record.append(bytes_of(length)).append(bytes_of(length_crc)).append(payload).append(bytes_of(crc));
  return record;
}

void read_events(const std::string& path, const std::function<bool(std::string_view payload, int64_t end)>& see) {
  const FileHandle file = FileHandle::open_to_read(path);
  std::string bytes;
  for (int64_t offset = 0;;) {
    struct {
      uint64_t length;
      uint32_t crc;
    } head;
    if (file.read_some(offset, head_bytes, &head) < head_bytes) return;
    if (head.crc != masked_crc32c(bytes_of(head.length)) || head.length > uint64_t{max_payload}) return;
    const auto length = static_cast<int64_t>(head.length);
    const int64_t rest = length + static_cast<int64_t>(sizeof(uint32_t));
    bytes.resize(static_cast<size_t>(rest));
    if (file.read_some(offset + head_bytes, rest, bytes.data()) < rest) return;
    const std::string_view payload = std::string_view(bytes).substr(0, head.length);
    uint32_t crc = 0;
    std::memcpy(&crc, bytes.data() + length, sizeof(crc));
    if (crc != masked_crc32c(payload)) return;
    offset += head_bytes + rest;
    if (!see(payload, offset)) return;
  }
}

}  // namespace llmtrain
