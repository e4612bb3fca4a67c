#pragma once
// Copies of keys and values, for attention whose query heads lie on more ranks than there are key heads: each rank then
// gathers the keys and values of the head that its query heads read.

#include <bit>
#include <cstdint>

#include "core/error.hpp"
#include "core/host_device.hpp"
#include "device/device.hpp"
#include "kernels/attention.hpp"

namespace llmtrain {

/// Most copies of a key head.
inline constexpr int64_t max_key_copies = 128;
/// Levels of a binary tree over them.
inline constexpr int max_tree_levels = std::bit_width(static_cast<uint64_t>(max_key_copies));

/// wide [N, (H + 2 G copies) D] gets the queries of narrow [N, (H + 2 G) D], then `copies` of each key head, then of
/// each value head, side by side. One dtype.
void copy_key_heads(const Tensor& wide, const Tensor& narrow, const AttentionShape& shape, int64_t copies,
                    Stream& stream);
/// The reverse for gradients: the copies of a head, a power of two, are added along a binary tree in fp32.
void add_key_heads(const Tensor& narrow, const Tensor& wide, const AttentionShape& shape, int64_t copies,
                   Stream& stream);

/// Columns of a row with and without copies.
struct KeyCopies {
  int64_t queries, width, copies;  ///< H D, D

  KeyCopies(const Tensor& wide, const Tensor& narrow, const AttentionShape& s, int64_t count)
      : queries(s.heads * s.head_dim), width(s.head_dim), copies(count) {
    LLMTRAIN_CHECK(wide.dtype == narrow.dtype && wide.dim(0) == narrow.dim(0) && count <= max_key_copies &&
                       std::has_single_bit(static_cast<uint64_t>(count)) &&
                       narrow.dim(1) == queries + 2 * s.kv_heads * width &&
                       wide.dim(1) == queries + 2 * s.kv_heads * count * width,
                   "rows with copies of their keys");
  }
  /// First of the columns that have copies of a column.
  LLMTRAIN_HOST_DEVICE int64_t wide_column(int64_t narrow) const {
    const int64_t head = (narrow - queries) / width, element = (narrow - queries) % width;
    return queries + head * copies * width + element;
  }
  /// The sum of value(0), value(1), ... along a binary tree.
  template <class Value>
  LLMTRAIN_HOST_DEVICE float sum(const Value& value) const {
    float partial[max_tree_levels] = {};  // in registers: every index is known when the loop over levels is unrolled
    float last = 0;
    for (int64_t i = 0; i < copies; ++i) {
      last = value(i);
      bool carries = true;
      for (int level = 0; level < max_tree_levels; ++level) {
        if (carries && (i >> level) % 2 == 1) {
          last = partial[level] + last;
        } else if (carries) {
          partial[level] = last;
          carries = false;
        }
      }
    }
    return last;
  }
};

}  // namespace llmtrain
