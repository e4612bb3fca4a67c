#include "text/pipeline/merge_table.hpp"

#include <algorithm>
#include <bit>
#include <queue>

#include "core/error.hpp"

namespace llmtrain {

MergeTable::MergeTable(size_t expected) {
  const size_t size = std::bit_ceil(std::max<size_t>(16, expected * 2));
  slots_.assign(size, {empty, {no_rank, -1}});
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
}

void MergeTable::set(int32_t left, int32_t right, const Merge& merge) {
  const uint64_t key = key_of(left, right);
  size_t slot = slot_of(key);
  for (size_t tries = 0; slots_[slot].key != key && slots_[slot].key != empty; ++tries) {
    LLMTRAIN_CHECK(tries < slots_.size() / 2, "a table of merges was made too small");
    slot = (slot + 1) & mask_;
  }
  slots_[slot] = {key, merge};
}

namespace {

constexpr size_t short_piece = 48;  // symbols

void merge_short(const MergeTable& table, std::vector<BpeSymbol>& symbols) {
  MergeTable::Merge merges[short_piece];  // merge of symbol i with the next
  size_t n = symbols.size();
  for (size_t i = 0; i + 1 < n; ++i) merges[i] = table.find(symbols[i].id, symbols[i + 1].id);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == MergeTable::no_rank) break;
    symbols[best] = {merges[best].id, symbols[best].length + symbols[best + 1].length};
    std::copy(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 2, symbols.begin() + static_cast<std::ptrdiff_t>(n),
              symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    --n;
    if (best + 1 < n) std::copy(merges + best + 2, merges + n, merges + best + 1);
    if (best + 1 < n) merges[best] = table.find(symbols[best].id, symbols[best + 1].id);
    if (best > 0) merges[best - 1] = table.find(symbols[best - 1].id, symbols[best].id);
  }
  symbols.resize(n);
}

struct Candidate {
  uint32_t rank;
  uint32_t place;
  int32_t id;
  bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : place > other.place; }
};

void merge_long(const MergeTable& table, std::vector<BpeSymbol>& symbols) {
  LLMTRAIN_CHECK(symbols.size() < UINT32_MAX, "a word has less than 2^32 symbols");
  constexpr uint32_t none = UINT32_MAX;
  const auto n = static_cast<uint32_t>(symbols.size());
  std::vector<uint32_t> before(n), after(n);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  const auto offer = [&](uint32_t left, uint32_t right) {
    const MergeTable::Merge merge = table.find(symbols[left].id, symbols[right].id);
    if (merge.rank != MergeTable::no_rank) heap.push({merge.rank, left, merge.id});
  };
  for (uint32_t i = 0; i < n; ++i) {
    before[i] = i == 0 ? none : i - 1;
    after[i] = i + 1 == n ? none : i + 1;
    if (i + 1 < n) offer(i, i + 1);
  }
  while (!heap.empty()) {
    const Candidate top = heap.top();
    heap.pop();
    const uint32_t left = top.place;
    if (symbols[left].length == 0 || after[left] == none) continue;
    const uint32_t right = after[left];
    const MergeTable::Merge merge = table.find(symbols[left].id, symbols[right].id);
    if (merge.rank != top.rank || merge.id != top.id) continue;  // the pair has changed in the meantime
    symbols[left] = {merge.id, symbols[left].length + symbols[right].length};
    symbols[right].length = 0;
    after[left] = after[right];
    if (after[right] != none) before[after[right]] = left;
    if (before[left] != none) offer(before[left], left);
    if (after[left] != none) offer(left, after[left]);
  }
  std::erase_if(symbols, [](const BpeSymbol& symbol) { return symbol.length == 0; });
}

}  // namespace

void apply_merges(const MergeTable& table, std::vector<BpeSymbol>& symbols) {
  if (symbols.size() <= short_piece) {
    merge_short(table, symbols);
  } else {
    merge_long(table, symbols);
  }
}

}  // namespace llmtrain
