#include "core/files/content_hash.hpp"

#include <fmt/format.h>

#include <charconv>
#include <new>

namespace llmtrain {

Digest digest_of(const void* data, size_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return {hash.high64, hash.low64};
}

std::string hex(const Digest& digest) { return fmt::format("{:016x}{:016x}", digest.high, digest.low); }

std::optional<Digest> parse_digest(std::string_view text) {
  if (text.size() != 32) return std::nullopt;
  Digest digest;
  const char* middle = text.data() + 16;
  const auto high = std::from_chars(text.data(), middle, digest.high, 16);
  const auto low = std::from_chars(middle, middle + 16, digest.low, 16);
  if (high.ptr != middle || low.ptr != middle + 16 || hex(digest) != text) return std::nullopt;
  return digest;
}

StreamHash::StreamHash() : state_(XXH3_createState()) {
  if (!state_) throw std::bad_alloc();
  XXH3_128bits_reset(state_.get());
}
void StreamHash::update(const void* data, size_t bytes) { XXH3_128bits_update(state_.get(), data, bytes); }
Digest StreamHash::digest() const {
  const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
  return {hash.high64, hash.low64};
}

Digest combine(std::span<const Digest> pieces) {
  static_assert(sizeof(Digest) == 16);
  return digest_of(pieces.data(), pieces.size_bytes());
}

std::string short_hash(std::string_view text) {
  return fmt::format("{:016x}", static_cast<uint64_t>(XXH3_64bits(text.data(), text.size())));
}

}  // namespace llmtrain
