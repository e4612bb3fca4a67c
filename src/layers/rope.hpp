#pragma once
#include <vector>

#include "core/arena.hpp"
#include "core/batch.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// Rotary positions of queries and keys: the frequencies and the table computed from them. Without frequencies there is
/// no rotation. If frequencies depend on the length of a segment, the table has a row for every row of the batch and is
/// recomputed for each batch.
struct Rope {
  std::vector<double> frequencies;       ///< [R/2] inverse frequencies
  std::vector<double> long_frequencies;  ///< for segments longer than `limit`; empty: the same for all lengths
  int64_t limit = 0;                     ///< tokens
  double ntk_factor = 0;                 ///< scales the long frequencies with the length (kernels/rope.hpp)
  double factor = 1;                     ///< factor on cos and sin
  Tensor table;                          ///< fp32 [N, R]
  int64_t first_row = 0;                 ///< by length: of the rows that apply() gets, in the table

  bool exists() const { return !frequencies.empty(); }
  bool by_length() const { return !long_frequencies.empty(); }

  /// Plans batches of at most `rows` tokens, which bounds the positions.
  void plan(Arena& arena, int64_t rows);
  void start(Stream& stream) const;
  /// Prepares the table before the first block of a forward pass; it is valid until the backward pass of the same batch
  /// has ended. apply() gets rows of the batch from `first` on.
  void prepare(const Batch& batch, int64_t first, Stream& stream);
  /// Rotates the first `heads` heads of qkv's rows, or rotates them back.
  void apply(const Tensor& qkv, const Batch& batch, int64_t heads, int64_t head_dim, bool inverse,
             Stream& stream) const;
};

}  // namespace llmtrain
