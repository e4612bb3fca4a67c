#pragma once
// Attention over segments of a single block: loads the operands of attention_short.hpp from tensors, and stores its
// results.

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/host/attention/attention_plan.hpp"
#include "kernels/host/attention/attention_short.hpp"

namespace llmtrain::host {

/// True if segments of one block use this path: only the diagonal hides keys, and the products are no faster in P.
template <class P>
bool short_segments(const AttentionShape& shape, const Dropout& dropout) {
  constexpr int64_t widest_half = 64;
  return !dropout.active() && shape.softcap == 0 && (shape.window == 0 || shape.window >= attention_block) &&
         (std::is_same_v<P, float> || shape.head_dim <= widest_half);
}

/// Gives the pass its memory.
inline ShortForward short_forward(Carver& carver, int head_dim) {
  ShortForward b{};
  b.channels = padded_head_dim(head_dim);
  const int64_t panel = int64_t{attention_block} * b.channels;
  for (float** p : {&b.query, &b.key, &b.key_transposed, &b.value, &b.output}) *p = carver.take<float>(panel);
  b.probabilities = carver.take<float>(int64_t{short_group} * attention_block);
  for (float** p : {&b.maximum, &b.sum}) *p = carver.take<float>(attention_block);
  return b;
}

inline ShortBackward short_backward(Carver& carver, int head_dim) {
  ShortBackward b{};
  b.channels = padded_head_dim(head_dim);
  const int64_t panel = int64_t{attention_block} * b.channels;
  for (float** p :
       {&b.query, &b.key, &b.key_transposed, &b.value, &b.value_transposed, &b.dout, &b.dquery, &b.dkey, &b.dvalue}) {
    *p = carver.take<float>(panel);
  }
  for (float** p : {&b.probabilities, &b.dscores}) *p = carver.take<float>(int64_t{attention_block} * attention_block);
  for (float** p : {&b.lse, &b.delta}) *p = carver.take<float>(attention_block);
  return b;
}

/// One segment, shared by all its heads.
template <class S>
struct ShortSegment {
  const HeadLayout& layout;
  int64_t row;   ///< first row
  int count;     ///< number of rows
  float powers;  ///< factor from products to scores in powers of two

  int rows() const { return (count + short_group - 1) / short_group * short_group; }
  void transpose(float* to, const float* panel) const {
    transpose_words(words(to), words(panel), attention_block, padded_head_dim(layout.head_dim));
  }

  /// Prefetches the inputs of either pass for query heads [first, first + heads) of one key head into the second-level
  /// cache: rows of a head are too far apart for the hardware prefetcher.
  void expect(const S* qkv, int first, int heads) const {
    const int kv_head = first / layout.group();
    fetch(layout.key<const S>(qkv, kv_head, row));
    fetch(layout.value<const S>(qkv, kv_head, row));
    for (int h = first; h < first + heads; ++h) fetch(layout.query<const S>(qkv, h, row));
  }
  /// Prefetches rows of a tensor like out.
  void expect_outputs(const S* out, int first, int heads) const {
    for (int h = first; h < first + heads; ++h) fetch(layout.output<const S>(out, h, row));
  }

  /// Query heads [first, first + heads) of one key head.
  void forward(S* out, float* lse, const S* qkv, int64_t tokens, int first, int heads, void* memory) const {
    Carver carver(memory);
    ShortForward b = short_forward(carver, layout.head_dim);
    b.rows = rows();
    b.scale = powers;
    const int kv_head = first / layout.group();
    load_rows(b.key, layout.key<const S>(qkv, kv_head, row), count);
    transpose(b.key_transposed, b.key);
    load_rows(b.value, layout.value<const S>(qkv, kv_head, row), count);
    for (int h = first; h < first + heads; ++h) {
      load_rows(b.query, layout.query<const S>(qkv, h, row), count);
      short_attention(b);
      store_rows(layout.output(out, h, row), b.output, 1.0f, count);
      float* logs = lse + h * tokens + row;
      for (int r = 0; r < count; ++r) logs[r] = (b.maximum[r] + std::log2(b.sum[r])) * std::numbers::ln2_v<float>;
    }
  }

  /// All query heads of a key head; delta: [H, N].
  void backward(const AttentionBackward& args, const float* delta, int64_t tokens, int kv_head, float scale,
                void* memory) const {
    Carver carver(memory);
    ShortBackward b = short_backward(carver, layout.head_dim);
    b.rows = rows();
    b.scale = powers;
    const S* qkv = args.qkv.as<S>();
    S* dqkv = args.dqkv.as<S>();
    load_rows(b.key, layout.key<const S>(qkv, kv_head, row), count);
    transpose(b.key_transposed, b.key);
    load_rows(b.value, layout.value<const S>(qkv, kv_head, row), count);
    transpose(b.value_transposed, b.value);
    for (float* sum : {b.dkey, b.dvalue}) std::fill(sum, sum + b.rows * b.channels, 0.0f);
    for (float* statistic : {b.lse, b.delta}) std::fill(statistic, statistic + attention_block, 0.0f);
    for (int h = kv_head * layout.group(); h < (kv_head + 1) * layout.group(); ++h) {
      load_rows(b.query, layout.query<const S>(qkv, h, row), count);
      load_rows(b.dout, layout.output<const S>(args.dout.as<S>(), h, row), count);
      const int64_t index = h * tokens + row;
      for (int r = 0; r < count; ++r) b.lse[r] = args.lse.as<float>()[index + r] * std::numbers::log2e_v<float>;
      std::copy(delta + index, delta + index + count, b.delta);
      short_attention(b);
      store_rows(layout.query(dqkv, h, row), b.dquery, scale, count);
    }
    store_rows(layout.key(dqkv, kv_head, row), b.dkey, scale, count);
    store_rows(layout.value(dqkv, kv_head, row), b.dvalue, 1.0f, count);
  }

 private:
  void fetch(const HeadRows<const S>& rows) const {
    constexpr int64_t line = 64 / sizeof(S);
    for (int r = 0; r < count; ++r) {
      for (int64_t d = 0; d < rows.head_dim; d += line) __builtin_prefetch(rows.data + r * rows.stride + d, 0, 2);
    }
  }
};

}  // namespace llmtrain::host
