#pragma once
// Tokens and their ids: one byte arena, a table by id and an open hash table of ids.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain {

/// Longest token. Longer ones are refused, and so is an id that leaves more than this many ids below it unused.
inline constexpr size_t longest_token = 4096;  ///< bytes
inline constexpr int64_t max_unused_ids = int64_t{1} << 20;

/// XXH3 of a short text.
uint64_t hash_of(std::string_view text);

class Vocabulary {
 public:
  enum class Added : uint8_t { yes, token_twice, id_twice };
  /// Adds a token with id >= 0; the caller checks that the id is not far above the others.
  Added add(std::string_view token, int32_t id);

  /// Returns -1 if there is none.
  int32_t find(std::string_view token) const;
  bool has(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < places_.size() && places_[static_cast<size_t>(id)].begin != nowhere;
  }
  /// Returns an empty text if the id has no token. Valid until the next add().
  std::string_view token(int32_t id) const;
  int64_t id_limit() const { return static_cast<int64_t>(places_.size()); }  ///< highest id + 1
  int64_t size() const { return count_; }
  size_t longest() const { return longest_; }  ///< bytes

 private:
  struct Place {
    uint32_t begin;
    uint32_t length;
  };
  static constexpr uint32_t nowhere = UINT32_MAX;
  void grow();
  size_t slot_of(std::string_view token) const;

  std::string arena_;
  std::vector<Place> places_;  // by id
  std::vector<int32_t> slots_ = std::vector<int32_t>(16, -1);
  int64_t count_ = 0;
  size_t longest_ = 0;
};

}  // namespace llmtrain
