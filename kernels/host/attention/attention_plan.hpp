#pragma once
// Division of attention into blocks and work items, and the layout of temporaries. Blocks are counted from the start of
// a segment, so that a segment's bits do not depend on the rest of the batch.

#include <algorithm>
#include <cstdint>

#include "kernels/attention.hpp"
#include "kernels/host/attention/attention_panels.hpp"

namespace llmtrain::host {

/// Rows [begin, begin + length) of the batch.
struct Segment {
  int64_t begin;
  int64_t length;
  int blocks() const { return static_cast<int>((length + attention_block - 1) / attention_block); }
  /// Number of rows in block b.
  int rows_of(int b) const {
    return static_cast<int>(std::min<int64_t>(attention_block, length - int64_t{b} * attention_block));
  }
};

/// The blocks inside the causal window: for query block i the key blocks first_key_block(i) .. i.
struct CausalWindow {
  int64_t window;  ///< 0 = unlimited

  int first_key_block(int query_block) const {
    if (window == 0) return 0;
    const int64_t key = int64_t{query_block} * attention_block - window + 1;
    return static_cast<int>(std::max<int64_t>(0, key) / attention_block);
  }
  int last_query_block(int key_block, int blocks) const {
    if (window == 0) return blocks - 1;
    const int64_t query = int64_t{key_block + 1} * attention_block - 1 + window - 1;
    return static_cast<int>(std::min<int64_t>(blocks - 1, query / attention_block));
  }
};

/// The visible part of one [keys, queries] tile: key row r sees the query columns [low(r), high(r)).
class TileMask {
 public:
  TileMask(int key_block, int query_block, int64_t window)
      : distance_(int64_t{query_block - key_block} * attention_block), window_(window) {}
  /// True if every key is visible to every query.
  bool full() const { return distance_ >= attention_block && (window_ == 0 || distance_ + attention_block <= window_); }
  int low(int row) const { return clamp(row - distance_); }
  int high(int row) const { return window_ == 0 ? attention_block : clamp(row - distance_ + window_); }

 private:
  static int clamp(int64_t column) { return static_cast<int>(std::clamp<int64_t>(column, 0, attention_block)); }
  int64_t distance_;  ///< first query - first key
  int64_t window_;
};

/// Header of the workspace.
struct AttentionCounters {
  int64_t next_item;       ///< the next unclaimed item
  int64_t visited_blocks;  ///< tiles of scores that were computed, all heads together
};

/// Work items of a pass: (segment, unit, strip of blocks), strips of one unit in descending order. Items are claimed in
/// this order, so that one may wait for an earlier one.
struct ItemList {
  const int32_t* segments;     ///< cumulative rows [count + 1]
  int64_t count;               ///< number of segments
  const int64_t* items_begin;  ///< [count + 1], first item of a segment
  int units;                   ///< heads, or groups of heads, per segment
  int blocks_per_strip;

  struct Item {
    Segment segment;
    int unit;
    int strip;
  };
  int64_t size() const { return items_begin[count]; }
  Item operator[](int64_t index) const;
};

/// Heads and their columns in a row of qkv.
struct HeadLayout {
  int heads;
  int kv_heads;
  int head_dim;
  int64_t stride;  ///< elements per row of qkv

  explicit HeadLayout(const AttentionShape& s)
      : heads(static_cast<int>(s.heads)),
        kv_heads(static_cast<int>(s.kv_heads)),
        head_dim(static_cast<int>(s.head_dim)),
        stride((s.heads + 2 * s.kv_heads) * s.head_dim) {}
  int group() const { return heads / kv_heads; }
  template <class T>
  HeadRows<T> query(T* qkv, int head, int64_t row) const {
    return {qkv + row * stride + int64_t{head} * head_dim, stride, head_dim};
  }
  template <class T>
  HeadRows<T> key(T* qkv, int kv_head, int64_t row) const {
    return query(qkv, heads + kv_head, row);
  }
  template <class T>
  HeadRows<T> value(T* qkv, int kv_head, int64_t row) const {
    return query(qkv, heads + kv_heads + kv_head, row);
  }
  /// Rows of out or dout, [N, H D].
  template <class T>
  HeadRows<T> output(T* out, int head, int64_t row) const {
    return {out + (row * heads + head) * int64_t{head_dim}, int64_t{heads} * head_dim, head_dim};
  }
};

/// The workspace: shared arrays, then an equal share for each worker.
struct AttentionWorkspace {
  AttentionCounters* counters = nullptr;
  int64_t* items_begin = nullptr;  ///< [N + 1]
  float* delta = nullptr;          ///< [H, N], sum(dout * out) of a row
  int32_t* turns = nullptr;        ///< [H, N], at the first row of a query block: number of contributions to its dQ
  float* dq = nullptr;             ///< per head and query block [D, rows], partial dQ, transposed
  char* shares = nullptr;
  int64_t shared_bytes = 0;  ///< bytes before the shares
  int64_t share_bytes = 0;
  int workers = 0;

  /// Lays out the arrays from `base`; with a null base only the sizes are computed.
  AttentionWorkspace(void* base, const AttentionShape& shape, int64_t rows);
  /// Plans for as many workers as there are threads and shares. Error if there is not even one share.
  static AttentionWorkspace open(const Tensor& workspace, const AttentionShape& shape, int64_t rows);

  void* share(int64_t worker) const { return shares + worker * share_bytes; }
};

/// Bytes of one worker in either pass.
int64_t forward_piece_bytes(int head_dim);
int64_t backward_piece_bytes(int head_dim);

/// FLOPs of one product over all visible pairs of query and key.
double product_flops(const Batch& batch, const AttentionShape& shape);

/// Checks shape, batch and tensors against each other and writes the item list into the workspace.
ItemList plan_items(const AttentionWorkspace& workspace, const Batch& batch, int units, int blocks_per_strip);

}  // namespace llmtrain::host
