#pragma once
// Checks of the arguments of experts' kernels, the same on every device, and the sorting of pairs, which the host does
// for both.

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "core/error.hpp"
#include "kernels/experts.hpp"

namespace llmtrain {

inline void check_rule(const RoutingRule& r) {
  LLMTRAIN_CHECK(r.experts > 0 && r.per_token > 0 && r.groups > 0 && r.groups <= max_expert_groups &&
                     r.experts % r.groups == 0 && r.groups_per_token > 0 && r.groups_per_token <= r.groups &&
                     r.per_token <= r.experts / r.groups * r.groups_per_token,
                 "a row has at least as many experts to choose from as it chooses");
}

inline void check_routing(const Tensor& scores, const Tensor& choices, const Tensor& weights, const RoutingRule& r) {
  check_rule(r);
  const int64_t n = scores.dim(0);
  LLMTRAIN_CHECK(scores.dtype == DType::f32 && scores.numel() == n * r.experts && choices.dtype == DType::i32 &&
                     choices.numel() == n * r.per_token && weights.dtype == DType::f32 &&
                     weights.numel() == n * r.per_token,
                 "scores are fp32 [N, E], choices int32 [N, k], weights fp32 [N, k]");
}

inline void check_pairs(const Tensor& pairs, const Tensor& order, int64_t rows, int64_t k) {
  LLMTRAIN_CHECK(order.empty()
                     ? pairs.dim(0) == rows && k == 1
                     : order.dtype == DType::i32 && pairs.dim(0) == order.numel() && order.numel() <= rows * k,
                 "pairs are int32 [P], with a row each");
}

inline void check_pair_bias(const Tensor& rows, const Tensor& bias) {
  LLMTRAIN_CHECK(rows.rank == 2 && bias.numel() == rows.dim(1), "a bias has an element for each column of the rows");
}

/// Writes the pairs of [N, k] choices sorted by expert, and their ends (see sort_pairs), in host memory.
inline void sort_pairs_on_host(std::span<int32_t> order, std::span<int64_t> ends, std::span<const int32_t> choices,
                               std::span<const int64_t> block_ends) {
  LLMTRAIN_CHECK(choices.size() <= INT32_MAX, "numbers of pairs are int32");
  const size_t blocks = block_ends.size(), experts = ends.size() / blocks;
  const size_t k = choices.size() / static_cast<size_t>(std::max<int64_t>(block_ends.back(), 1));
  // counts of the pairs of each block, then their beginnings, which move to their ends
  std::ranges::fill(ends, 0);
  size_t pair = 0;
  for (size_t b = 0; b < blocks; ++b) {
    for (; pair < static_cast<size_t>(block_ends[b]) * k; ++pair) {
      ++ends[b * experts + static_cast<size_t>(choices[pair])];
    }
  }
  int64_t begin = 0;
  for (size_t e = 0; e < experts; ++e) {
    for (size_t b = 0; b < blocks; ++b) begin += std::exchange(ends[b * experts + e], begin);
  }
  pair = 0;
  for (size_t b = 0; b < blocks; ++b) {
    for (; pair < static_cast<size_t>(block_ends[b]) * k; ++pair) {
      int64_t& end = ends[b * experts + static_cast<size_t>(choices[pair])];
      order[static_cast<size_t>(end++)] = static_cast<int32_t>(pair);
    }
  }
}

}  // namespace llmtrain
