#pragma once
// Operands of block products, cut from the rows of a tensor. Scores are kept transposed, [keys, queries]: softmax
// statistics are then vectors over the queries of a block and every loop runs over independent lanes.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/dtype.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/fast_math.hpp"
#include "kernels/host/words.hpp"

namespace llmtrain::host {

/// Rows of a query block and of a key block.
inline constexpr int attention_block = 64;

/// Head dimension padded with zeros, so that products and transposes have no remainder.
constexpr int padded_head_dim(int64_t head_dim) { return static_cast<int>((head_dim + 15) / 16 * 16); }

/// Allocates 64-byte aligned parts of a buffer, or only measures if there is no buffer.
class Carver {
 public:
  explicit Carver(void* base = nullptr) : base_(static_cast<char*>(base)) {}
  template <class T>
  T* take(int64_t count) {
    char* share = base_ == nullptr ? nullptr : base_ + used_;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    return reinterpret_cast<T*>(share);
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

/// Rows of one head inside a tensor whose rows are `stride` elements apart.
template <class T>
struct HeadRows {
  T* data;
  int64_t stride;
  int head_dim;
};

/// Inlined, unlike a call of memcpy with a size known only at run time.
inline void copy_short(void* to, const void* from, size_t bytes) {
  size_t done = 0;
  for (; done + 32 <= bytes; done += 32) {
    std::memcpy(static_cast<char*>(to) + done, static_cast<const char*>(from) + done, 32);
  }
  if (done < bytes) std::memcpy(static_cast<char*>(to) + done, static_cast<const char*>(from) + done, bytes - done);
}

/// dst[count, padded] = rows, zero beyond head_dim.
template <class S, class P>
void copy_rows(P* dst, const HeadRows<const S>& src, int count) {
  const int padded = padded_head_dim(src.head_dim);
  for (int r = 0; r < count; ++r) {
    const S* from = src.data + r * src.stride;
    P* to = dst + r * padded;
    if constexpr (std::is_same_v<S, P>) {
      copy_short(to, from, static_cast<size_t>(src.head_dim) * sizeof(P));
    } else {
      for (int d = 0; d < src.head_dim; d += 8) {
        store_up_to(to + d, load_up_to(from + d, src.head_dim - d), src.head_dim - d);
      }
    }
    if (padded > src.head_dim) std::fill(to + src.head_dim, to + padded, P(0.0f));
  }
}

/// dst[64, padded] = rows, zero beyond `count` and beyond head_dim.
template <class S, class P>
void load_rows(P* dst, const HeadRows<const S>& src, int count) {
  const int padded = padded_head_dim(src.head_dim);
  copy_rows(dst, src, count);
  if (count < attention_block) std::fill(dst + count * padded, dst + attention_block * padded, P(0.0f));
}

/// dst[columns, rows] = transpose of src[rows, columns], 32-bit words; both multiples of 8.
inline void transpose_words(uint32_t* dst, const uint32_t* src, int rows, int columns) {
  for (int r0 = 0; r0 < rows; r0 += 8) {
    for (int c0 = 0; c0 < columns; c0 += 8) {
      Words8 tile[8];
      for (int i = 0; i < 8; ++i) std::memcpy(&tile[i], src + (r0 + i) * columns + c0, sizeof(Words8));
      transpose(tile);
      for (int i = 0; i < 8; ++i) std::memcpy(dst + (c0 + i) * rows + r0, &tile[i], sizeof(Words8));
    }
  }
}

/// Operands are typed by element but moved as 32-bit words: one fp32 or a pair of bf16.
template <class P>
uint32_t* words(P* p) {
  return reinterpret_cast<uint32_t*>(p);
}
template <class P>
const uint32_t* words(const P* p) {
  return reinterpret_cast<const uint32_t*>(p);
}

/// B operand [padded, columns] (inner dimension: channels) of rows[columns, padded].
template <class P>
void pack_channels_inner(P* dst, const P* rows, int padded, int columns = attention_block) {
  transpose_words(words(dst), words(rows), columns, padded * static_cast<int>(sizeof(P)) / 4);
}

/// bf16 B operand [64, padded] (inner dimension: rows) of rows[64, padded]; in fp32 the rows are their own operand.
inline void pack_rows_inner(bf16* dst, const bf16* rows, int padded) {
  uint32_t* out = words(dst);
  for (int r = 0; r < attention_block; r += 2) {
    const bf16* low = rows + r * padded;
    const bf16* high = low + padded;
    for (int d = 0; d < padded; ++d) out[d] = low[d].bits | static_cast<uint32_t>(high[d].bits) << 16;
    out += padded;
  }
}

/// The same of `columns` channels, a multiple of 8, of `count` rows that are `stride` elements apart, and zeros.
inline void pack_row_pairs(bf16* dst, const bf16* rows, int64_t stride, int count, int columns) {
  uint32_t* out = words(dst);
  for (int r = 0; r < attention_block; r += 2, out += columns) {
    const bf16* low = rows + r * stride;
    if (r >= count) {
      std::fill(out, out + columns, 0U);
      continue;
    }
    for (int c = 0; c < columns; c += 8) {
      const Half8 high = r + 1 < count ? load_halves(low + stride + c) : Half8{};
      store_words(out + c, interleave(load_halves(low + c), high));
    }
  }
}

/// bf16 B operand [64, columns] (inner dimension: rows) of an fp32 tile.
inline void pack_rows_inner(bf16* dst, const float* tile, int columns) {
  uint32_t* out = words(dst);
  for (int r = 0; r < attention_block; r += 2) {
    const float* low = tile + r * columns;
    for (int c = 0; c < columns; c += 8) {
      const auto pairs = bf16_bits(load8(low + c)) | bf16_bits(load8(low + columns + c)) << 16;
      std::memcpy(out + c, &pairs, sizeof pairs);
    }
    out += columns;
  }
}

/// A operand [padded, 64] of rows[64, padded]. spare: [64, padded], used in bf16.
template <class P>
void pack_transposed(P* dst, const P* rows, int padded, P* spare) {
  if constexpr (std::is_same_v<P, bf16>) {
    pack_rows_inner(spare, rows, padded);
    transpose_words(words(dst), words(spare), attention_block / 2, padded);
  } else {
    transpose_words(words(dst), words(rows), attention_block, padded);
  }
}

/// rows = scale * t[64, padded].
template <class S>
void store_rows(const HeadRows<S>& dst, const float* t, float scale, int count) {
  const int padded = padded_head_dim(dst.head_dim);
  for (int r = 0; r < count; ++r) {
    for (int d = 0; d < dst.head_dim; d += 8) {
      store_up_to(dst.data + r * dst.stride + d, load8(t + r * padded + d) * scale, dst.head_dim - d);
    }
  }
}

/// rows = scale * the transpose of t[padded, 64]; spare: fp32 [64, padded].
template <class S>
void store_transposed(const HeadRows<S>& dst, const float* t, float scale, int count, float* spare) {
  const int padded = padded_head_dim(dst.head_dim);
  transpose_words(words(spare), words(t), padded, attention_block);
  store_rows(dst, spare, scale, count);
}

}  // namespace llmtrain::host
