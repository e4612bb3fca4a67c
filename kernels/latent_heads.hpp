#pragma once
// Heads of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1.3) as rows for attention with as
// many keys as queries. Attention does not see the order of a head's elements as long as queries and keys agree: the
// rotated ones come first here, those of a pair R/2 apart, as rope_apply() turns them.

#include <cstdint>

#include "core/error.hpp"
#include "core/host_device.hpp"
#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

struct LatentHeads {
  int64_t heads = 1;         ///< H
  int64_t plain = 1;         ///< elements of a query or key that are not rotated
  int64_t rotated = 2;       ///< R, elements that are, even; all heads share those of a key
  int64_t value = 1;         ///< V, elements of a value, at most those of a query; rows have zeros behind them
  bool interleaved = false;  ///< outside, elements 2i and 2i + 1 are a pair; else i and i + R/2

  /// D, elements of a query or key.
  LLMTRAIN_HOST_DEVICE int64_t width() const { return plain + rotated; }
  LLMTRAIN_HOST_DEVICE int64_t columns() const { return 3 * heads * width(); }
  LLMTRAIN_HOST_DEVICE int64_t query_columns() const { return heads * width(); }
  LLMTRAIN_HOST_DEVICE int64_t key_columns() const { return heads * (plain + value); }
  LLMTRAIN_HOST_DEVICE int64_t place_of_rotated(int64_t i) const {
    return interleaved ? i / 2 + i % 2 * (rotated / 2) : i;
  }
  /// Place in a head of element i as it is outside.
  LLMTRAIN_HOST_DEVICE int64_t place(int64_t i) const { return i < plain ? rotated + i : place_of_rotated(i - plain); }

  enum class Source : uint8_t { none, query, key_value, shared };
  /// A column of a row for attention, and the column that it is of a source; zeros behind a value have none.
  struct Element {
    int64_t column;
    Source source;
    int64_t from;
  };
  /// Returns element `at` of the columns() of a row, in an order of its own.
  LLMTRAIN_HOST_DEVICE Element element(int64_t at) const {
    const int64_t part = at / query_columns(), head = at % query_columns() / width(), i = at % width();
    const int64_t first = at - i;
    if (part == 0) return {first + place(i), Source::query, head * width() + i};
    const int64_t of_head = head * (plain + value);
    if (part == 1 && i < plain) return {first + place(i), Source::key_value, of_head + i};
    if (part == 1) return {first + place(i), Source::shared, i - plain};
    return {at, i < value ? Source::key_value : Source::none, of_head + plain + i};
  }
};

/// Assembles qkv [N, 3 H D], for AttentionShape{H, H, D}, of the queries, which are the first H D columns of q, plain
/// parts of keys and values, kv [N, H (plain + V)] by heads, and the rotated part of the keys, the last R columns of
/// low. One dtype, fp32 or one of 16 bits; q may be low.
void latent_heads_forward(const Tensor& qkv, const Tensor& q, const Tensor& kv, const Tensor& low,
                          const LatentHeads& heads, Stream& stream);
/// Writes the gradients of these columns, and no others; dlow's are sums over heads in fp32, in their order, and it may
/// be fp32.
void latent_heads_backward(const Tensor& dq, const Tensor& dkv, const Tensor& dlow, const Tensor& dqkv,
                           const LatentHeads& heads, Stream& stream);

/// Copies columns [from_first, from_first + columns) of a matrix to those of another with as many rows; fp32 to or from
/// a 16-bit dtype, or equal dtypes.
void copy_columns(const Tensor& to, int64_t to_first, const Tensor& from, int64_t from_first, int64_t columns,
                  Stream& stream);

inline void check_latent_heads(const Tensor& qkv, const Tensor& q, const Tensor& kv, const Tensor& low,
                               const LatentHeads& h) {
  LLMTRAIN_CHECK(
      h.heads > 0 && h.plain > 0 && h.rotated > 0 && h.rotated % 2 == 0 && h.value > 0 && h.value <= h.width(),
      "latent heads: an even number of rotated elements, and values no wider than queries");
  LLMTRAIN_CHECK(qkv.rank == 2 && qkv.dim(1) == h.columns() && q.dim(1) >= h.query_columns() &&
                     kv.dim(1) == h.key_columns() && low.dim(1) >= h.rotated,
                 "latent heads: qkv is [N, 3 H D], kv [N, H (plain + V)]");
  for (const Tensor* t : {&q, &kv, &low}) {
    LLMTRAIN_CHECK(t->rank == 2 && t->dim(0) == qkv.dim(0), "latent heads: a row for each of qkv");
  }
  LLMTRAIN_CHECK(q.dtype == qkv.dtype && kv.dtype == qkv.dtype, "latent heads: one dtype");
}

inline void check_columns(const Tensor& to, int64_t to_first, const Tensor& from, int64_t from_first, int64_t columns) {
  LLMTRAIN_CHECK(to.rank == 2 && from.rank == 2 && to.dim(0) == from.dim(0) && columns > 0 && to_first >= 0 &&
                     from_first >= 0 && to_first + columns <= to.dim(1) && from_first + columns <= from.dim(1),
                 "copy_columns: columns of matrices with as many rows");
}

}  // namespace llmtrain
