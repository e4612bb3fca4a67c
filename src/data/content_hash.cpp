#include "data/content_hash.hpp"

#include <fmt/format.h>

namespace llmtrain {

Digest digest_of(const void* data, size_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return {hash.high64, hash.low64};
}

std::string hex(const Digest& digest) { return fmt::format("{:016x}{:016x}", digest.high, digest.low); }

Digest combine(std::span<const Digest> pieces) {
  static_assert(sizeof(Digest) == 16);
  return digest_of(pieces.data(), pieces.size_bytes());
}

std::string short_hash(std::string_view text) {
  return fmt::format("{:016x}", static_cast<uint64_t>(XXH3_64bits(text.data(), text.size())));
}

}  // namespace llmtrain
