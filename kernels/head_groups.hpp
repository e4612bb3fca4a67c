#pragma once
// Queries, keys and values by groups, as the fused matrices of GPT-NeoX and Falcon have them: the query heads that
// share a key head, this key head, its value head, and then the next group.

#include <cstdint>

#include "core/error.hpp"
#include "core/host_device.hpp"
#include "device/device.hpp"
#include "kernels/attention.hpp"

namespace llmtrain {

/// qkv [N, (H + 2 G) D], queries, then keys, then values, gets the heads of `groups` [N, (H + 2 G) D]. One dtype.
void ungroup_heads(const Tensor& qkv, const Tensor& groups, const AttentionShape& shape, Stream& stream);
/// The reverse.
void group_heads(const Tensor& groups, const Tensor& qkv, const AttentionShape& shape, Stream& stream);

/// Places of heads among H + 2 G.
struct HeadGroups {
  int64_t heads, kv_heads;

  /// Returns the place behind queries, then keys, then values, of the head that is the `grouped`-th by groups.
  LLMTRAIN_HOST_DEVICE int64_t place(int64_t grouped) const {
    const int64_t queries = heads / kv_heads, group = grouped / (queries + 2), i = grouped % (queries + 2);
    if (i < queries) return group * queries + i;
    return heads + (i - queries) * kv_heads + group;
  }
};

/// Throws Error unless these are arguments of the functions above; returns the places.
inline HeadGroups check_groups(const Tensor& qkv, const Tensor& groups, const AttentionShape& s) {
  LLMTRAIN_CHECK(s.kv_heads > 0 && s.heads % s.kv_heads == 0 && qkv.rank == 2 && groups.shape == qkv.shape &&
                     groups.dtype == qkv.dtype && qkv.dim(1) == (s.heads + 2 * s.kv_heads) * s.head_dim,
                 "heads by groups: one dtype, and rows of queries, keys and values");
  return {s.heads, s.kv_heads};
}

}  // namespace llmtrain
