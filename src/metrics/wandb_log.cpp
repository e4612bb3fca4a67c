#include "metrics/wandb_log.hpp"

#include <zlib.h>

#include <array>
#include <filesystem>

#include "core/error.hpp"
#include "core/files/file_handle.hpp"

namespace llmtrain {

namespace {

constexpr int64_t block_bytes = 32 * 1024;
constexpr int64_t chunk_head_bytes = 7;  ///< CRC-32 of type and data, uint16 length, type
constexpr int64_t max_record = int64_t{256} << 20;

enum ChunkType : char { full_chunk = 1, first_chunk = 2, middle_chunk = 3, last_chunk = 4 };

void add_little_endian(std::string& bytes, uint32_t value, int count) {
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i));
}

uint32_t chunk_crc(char type, std::string_view data) {
  const uLong crc = crc32(0, reinterpret_cast<const Bytef*>(&type), 1);
  return static_cast<uint32_t>(crc32(crc, reinterpret_cast<const Bytef*>(data.data()), static_cast<uInt>(data.size())));
}

/// Bytes from `offset` to the next place where a chunk can begin, which zeros fill.
int64_t padding_at(int64_t offset) {
  const int64_t left = block_bytes - offset % block_bytes;
  return left < chunk_head_bytes ? left : 0;
}

struct Chunk {
  char type = 0;
  std::string data;
};

/// Returns false at the end of the file, and where a chunk is damaged or cut off.
bool read_chunk(const FileHandle& file, int64_t& offset, Chunk& chunk) {
  offset += padding_at(offset);
  std::array<uint8_t, chunk_head_bytes> head{};
  if (file.read_some(offset, chunk_head_bytes, head.data()) < chunk_head_bytes) return false;
  const uint32_t crc = head[0] | uint32_t{head[1]} << 8 | uint32_t{head[2]} << 16 | uint32_t{head[3]} << 24;
  const int64_t length = head[4] | head[5] << 8;
  if (offset % block_bytes + chunk_head_bytes + length > block_bytes) return false;
  chunk.type = static_cast<char>(head[6]);
  chunk.data.resize(static_cast<size_t>(length));
  if (file.read_some(offset + chunk_head_bytes, length, chunk.data.data()) < length) return false;
  offset += chunk_head_bytes + length;
  return crc == chunk_crc(chunk.type, chunk.data);
}

}  // namespace

std::string wandb_file_header() { return std::string(":W&B\xE1\xBE\0", 7); }

std::string wandb_chunks(std::string_view payload, int64_t offset) {
  std::string chunks;
  for (bool first = true, last = false; !last; first = false) {
    const int64_t padding = padding_at(offset);
    chunks.append(static_cast<size_t>(padding), '\0');
    offset += padding;
    const int64_t room = block_bytes - offset % block_bytes - chunk_head_bytes;
    const std::string_view data = payload.substr(0, static_cast<size_t>(room));
    payload.remove_prefix(data.size());
    last = payload.empty();
    const char type = first ? (last ? full_chunk : first_chunk) : last ? last_chunk : middle_chunk;
    add_little_endian(chunks, chunk_crc(type, data), 4);
    add_little_endian(chunks, static_cast<uint32_t>(data.size()), 2);
    chunks += type;
    chunks += data;
    offset += chunk_head_bytes + static_cast<int64_t>(data.size());
  }
  return chunks;
}

WandbLog::WandbLog(const std::string& path) : file_(path) {
  bytes_ = static_cast<int64_t>(std::filesystem::file_size(path));
  if (bytes_ > 0) return;
  file_.append(wandb_file_header());
  bytes_ = static_cast<int64_t>(wandb_file_header().size());
}

void WandbLog::append(std::string_view payload) {
  const std::string chunks = wandb_chunks(payload, bytes_);
  file_.append(chunks);
  bytes_ += static_cast<int64_t>(chunks.size());
}

void read_wandb_log(const std::string& path, const std::function<void(std::string_view payload)>& see) {
  const FileHandle file = FileHandle::open_to_read(path);
  const std::string expected = wandb_file_header();
  std::string header(expected.size(), '\0');
  const auto length = static_cast<int64_t>(header.size());
  if (file.read_some(0, length, header.data()) < length || header != expected) {
    throw UserError(ExitCode::bad_content, path + ": not a file of an offline W&B run");
  }
  std::string record;
  Chunk chunk;
  for (int64_t offset = length; read_chunk(file, offset, chunk);) {
    if (chunk.type == full_chunk || chunk.type == first_chunk) record.clear();
    record += chunk.data;
    if (static_cast<int64_t>(record.size()) > max_record) return;
    if (chunk.type == full_chunk || chunk.type == last_chunk) see(record);
  }
}

}  // namespace llmtrain
