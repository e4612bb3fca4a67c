#pragma once
// Content hashes that ranks and threads compute together: XXH3-128 over the XXH3-128 digests of pieces of 1 MiB.

#include <xxhash.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace llmtrain {

inline constexpr int64_t hash_piece = int64_t{1} << 20;  ///< bytes

struct Digest {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const Digest&) const = default;
};

Digest digest_of(const void* data, size_t bytes);
/// 32 hex digits.
std::string hex(const Digest& digest);
/// The hash of the whole from those of its pieces, in order.
Digest combine(std::span<const Digest> pieces);
/// 16 hex digits of a short text (XXH3-64).
std::string short_hash(std::string_view text);

}  // namespace llmtrain
