#pragma once
// Assignment of documents to samples, and an order in which steps have samples of about equal length. Pure functions of
// the lengths, so that every rank computes the same alone.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "data/sample_rules.hpp"

namespace llmtrain {

/// Items 0 .. n - 1 in packs, each pack's in input order; packs are in the order of their first items.
struct Packs {
  std::vector<int64_t> begin;  ///< begin of each pack in `items`, n_packs + 1 entries
  std::vector<int32_t> items;
};

/// Lengths are in 1 .. capacity, no pack's sum is above capacity.
///   greedy     next fit: an item that does not fit into the open pack closes it and opens the next
///   first_fit  in input order, each into the oldest pack with room
///   best_fit   longest first (equal ones in input order), each into the pack with the least room that suffices (of
///              equal ones the oldest): best-fit decreasing
/// Time n log n; memory up to about 24 bytes an item.
Packs pack_items(DataConfig::Packing packing, std::span<const int32_t> lengths, int32_t capacity);

/// Sorts runs of `order` by length, the longest sample first and equal ones in their order; then swaps the longest
/// sample of all with the first one, so that a lack of memory shows at once. A run has 50 steps, or fewer so that there
/// are at least four runs. The same as Transformers' LengthGroupedSampler.
void group_by_length(std::vector<int64_t>& order, int64_t samples_per_step,
                     const std::function<int64_t(int64_t sample)>& length);

}  // namespace llmtrain
