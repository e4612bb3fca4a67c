#pragma once
// Content hashes that ranks and threads compute together: XXH3-128 over the XXH3-128 digests of pieces of 1 MiB.

#include <xxhash.h>

#include <cstdint>
#include <memory>
#include <optional>
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

/// Identity of a file or folder that a deck names, by content.
struct NamedContent {
  std::string key;   ///< key of the deck
  std::string path;  ///< path as the deck or its pattern gives it
  std::string hash;
  /// distinguishes several files of one key where the order matters: source and weight in a mixture; else empty
  std::string role;
  bool operator==(const NamedContent&) const = default;
};

Digest digest_of(const void* data, size_t bytes);
/// 32 hex digits.
std::string hex(const Digest& digest);
/// Parses exactly what hex() writes.
std::optional<Digest> parse_digest(std::string_view text);
/// Hash of the whole from the digests of its pieces, in order.
Digest combine(std::span<const Digest> pieces);
/// Computes digest_of() incrementally.
class StreamHash {
 public:
  StreamHash();
  void update(const void* data, size_t bytes);
  Digest digest() const;

 private:
  struct Free {
    void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
  };
  std::unique_ptr<XXH3_state_t, Free> state_;
};

/// Hash of a short text (XXH3-64), 16 hex digits.
std::string short_hash(std::string_view text);

}  // namespace llmtrain
