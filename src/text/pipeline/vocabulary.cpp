#include "text/pipeline/vocabulary.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "core/error.hpp"

namespace llmtrain {

uint64_t hash_of(std::string_view text) { return XXH3_64bits(text.data(), text.size()); }

size_t Vocabulary::slot_of(std::string_view token) const {
  const size_t mask = slots_.size() - 1;
  size_t slot = hash_of(token) & mask;
  while (slots_[slot] >= 0 && this->token(slots_[slot]) != token) slot = (slot + 1) & mask;
  return slot;
}

Vocabulary::Added Vocabulary::add(std::string_view token, int32_t id) {
  LLMTRAIN_CHECK(id >= 0 && arena_.size() + token.size() < nowhere, "a vocabulary holds less than 4 GiB");
  const size_t index = static_cast<size_t>(id);
  if (has(id)) return Added::id_twice;
  if ((static_cast<size_t>(count_) + 1) * 2 > slots_.size()) grow();
  const size_t slot = slot_of(token);
  if (slots_[slot] >= 0) return Added::token_twice;
  if (index >= places_.size()) places_.resize(index + 1, {nowhere, 0});
  places_[index] = {static_cast<uint32_t>(arena_.size()), static_cast<uint32_t>(token.size())};
  arena_ += token;
  slots_[slot] = id;
  ++count_;
  longest_ = std::max(longest_, token.size());
  return Added::yes;
}

void Vocabulary::grow() {
  std::vector<int32_t> old(slots_.size() * 2, -1);
  old.swap(slots_);
  for (const int32_t id : old) {
    if (id >= 0) slots_[slot_of(token(id))] = id;
  }
}

int32_t Vocabulary::find(std::string_view token) const { return slots_[slot_of(token)]; }

std::string_view Vocabulary::token(int32_t id) const {
  if (!has(id)) return {};
  const Place& place = places_[static_cast<size_t>(id)];
  return std::string_view(arena_).substr(place.begin, place.length);
}

}  // namespace llmtrain
