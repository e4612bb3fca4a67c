#include "data/stream/packing.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "core/error.hpp"

namespace llmtrain {

namespace {

/// Room left in each pack, with packs that are not open yet after the others: the leftmost one with enough room is the
/// oldest open one, otherwise the next new one. A binary tree of maxima in an array.
class RoomTree {
 public:
  explicit RoomTree(int32_t capacity) : capacity_(capacity), most_(2, capacity) {}

  /// Takes `length` from the leftmost pack with enough room; returns that pack.
  int32_t take(int32_t length) {
    if (most_[1] < length) grow();
    size_t node = 1;
    while (node < leaves_) {
      node *= 2;
      if (most_[node] < length) ++node;
    }
    const int32_t pack = static_cast<int32_t>(node - leaves_);
    most_[node] -= length;
    for (node /= 2; node >= 1; node /= 2) most_[node] = std::max(most_[2 * node], most_[2 * node + 1]);
    return pack;
  }

 private:
  void grow() {
    std::vector<int32_t> larger(4 * leaves_, capacity_);
    for (size_t level = 1; level <= leaves_; level *= 2) {  // each level becomes the left half of the next
      std::copy_n(most_.begin() + static_cast<std::ptrdiff_t>(level), level,
                  larger.begin() + static_cast<std::ptrdiff_t>(2 * level));
    }
    most_ = std::move(larger);
    leaves_ *= 2;
  }

  int32_t capacity_;
  size_t leaves_ = 1;
  std::vector<int32_t> most_;  // node i has the children 2 i and 2 i + 1; leaves from leaves_ on
};

/// Open packs by room left; of equal room the oldest comes first.
class RoomMap {
 public:
  explicit RoomMap(int32_t capacity) : capacity_(capacity) {}

  int32_t take(int32_t length) {
    const auto found = packs_.lower_bound(length);
    int32_t pack = packs_opened_, room = capacity_;
    if (found == packs_.end()) {
      ++packs_opened_;
    } else {
      std::vector<int32_t>& heap = found->second;
      std::pop_heap(heap.begin(), heap.end(), std::greater<>());
      pack = heap.back();
      room = found->first;
      heap.pop_back();
      if (heap.empty()) packs_.erase(found);
    }
    if (room > length) {
      std::vector<int32_t>& heap = packs_[room - length];
      heap.push_back(pack);
      std::push_heap(heap.begin(), heap.end(), std::greater<>());
    }
    return pack;
  }

 private:
  int32_t capacity_;
  int32_t packs_opened_ = 0;
  std::map<int32_t, std::vector<int32_t>> packs_;  // room -> heap, the lowest number first
};

std::vector<int32_t> next_fit(std::span<const int32_t> lengths, int32_t capacity) {
  std::vector<int32_t> pack_of(lengths.size());
  int32_t pack = 0, room = capacity;
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] > room) {
      ++pack;
      room = capacity;
    }
    room -= lengths[i];
    pack_of[i] = pack;
  }
  return pack_of;
}

std::vector<int32_t> first_fit(std::span<const int32_t> lengths, int32_t capacity) {
  RoomTree rooms(capacity);
  std::vector<int32_t> pack_of(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) pack_of[i] = rooms.take(lengths[i]);
  return pack_of;
}

/// Renumbers packs by their first item.
std::vector<int32_t> best_fit_decreasing(std::span<const int32_t> lengths, int32_t capacity) {
  std::vector<int32_t> order(lengths.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::ranges::stable_sort(
      order, [&](int32_t a, int32_t b) { return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)]; });
  RoomMap rooms(capacity);
  std::vector<int32_t> pack_of(lengths.size());
  for (const int32_t item : order) {
    pack_of[static_cast<size_t>(item)] = rooms.take(lengths[static_cast<size_t>(item)]);
  }
  std::vector<int32_t>& number =
      order;  // new number of each pack, -1 = not seen yet; there are no more packs than items
  std::ranges::fill(number, -1);
  int32_t packs = 0;
  for (int32_t& pack : pack_of) {
    int32_t& known = number[static_cast<size_t>(pack)];
    if (known < 0) known = packs++;
    pack = known;
  }
  return pack_of;
}

}  // namespace

Packs pack_items(DataConfig::Packing packing, std::span<const int32_t> lengths, int32_t capacity) {
  for (const int32_t length : lengths) LLMTRAIN_CHECK(length >= 1 && length <= capacity, "the item fits no pack");
  if (lengths.size() >= size_t{1} << 31) {
    throw UserError(ExitCode::bad_content, "more than 2^31 documents cannot be packed; use data.packing = wrap");
  }
  const std::vector<int32_t> pack_of = packing == DataConfig::Packing::greedy ? next_fit(lengths, capacity)
                                       : packing == DataConfig::Packing::first_fit
                                           ? first_fit(lengths, capacity)
                                           : best_fit_decreasing(lengths, capacity);
  Packs packs;
  const int32_t count = pack_of.empty() ? 0 : *std::ranges::max_element(pack_of) + 1;
  packs.begin.assign(static_cast<size_t>(count) + 1, 0);
  for (const int32_t pack : pack_of) ++packs.begin[static_cast<size_t>(pack) + 1];
  for (size_t p = 1; p < packs.begin.size(); ++p) packs.begin[p] += packs.begin[p - 1];
  packs.items.resize(lengths.size());
  std::vector<int64_t> next(packs.begin.begin(), packs.begin.end() - 1);
  for (size_t i = 0; i < pack_of.size(); ++i) {
    packs.items[static_cast<size_t>(next[static_cast<size_t>(pack_of[i])]++)] = static_cast<int32_t>(i);
  }
  return packs;
}

void group_by_length(std::vector<int64_t>& order, int64_t samples_per_step,
                     const std::function<int64_t(int64_t sample)>& length) {
  constexpr int64_t max_steps = 50;
  const auto count = static_cast<int64_t>(order.size());
  const int64_t steps = std::clamp<int64_t>(count / (4 * samples_per_step), 1, max_steps);
  std::vector<std::pair<int64_t, int64_t>> run;  // length, sample
  int64_t longest = -1, longest_at = 0;
  for (int64_t begin = 0; begin < count; begin += steps * samples_per_step) {
    const int64_t end = std::min(begin + steps * samples_per_step, count);
    run.clear();
    for (int64_t i = begin; i < end; ++i) {
      const int64_t sample = order[static_cast<size_t>(i)];
      run.emplace_back(length(sample), sample);
    }
    std::ranges::stable_sort(run, [](const auto& a, const auto& b) { return a.first > b.first; });
    std::transform(run.begin(), run.end(), order.begin() + begin, [](const auto& entry) { return entry.second; });
    if (run.front().first > longest) {
      longest = run.front().first;
      longest_at = begin;
    }
  }
  if (count > 0) std::swap(order.front(), order[static_cast<size_t>(longest_at)]);
}

}  // namespace llmtrain
