#pragma once
// Event files of TensorBoard. A record: uint64 length, masked CRC32C of these 8 bytes, the payload, its masked CRC32C
// (all little-endian). The payload is a tensorboard.Event; the first of a file is its version.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace llmtrain {

/// CRC32C (Castagnoli) as TFRecord files store it.
uint32_t masked_crc32c(std::string_view bytes);

/// The record of a payload.
std::string event_record(std::string_view payload);

/// Calls see(payload, end) for each record of the file, with the offset after it, up to the first one that is damaged
/// or cut off, or until it returns false. UserError(io).
void read_events(const std::string& path, const std::function<bool(std::string_view payload, int64_t end)>& see);

}  // namespace llmtrain
