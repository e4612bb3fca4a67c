#pragma once
#include "kernels/logprob.hpp"
#include "kernels/matmul.hpp"
#include "layers/context.hpp"

namespace llmtrain {

/// From final hidden states to per-token statistics. Logits exist for a block of rows at a time, their gradients for a
/// group of blocks, never for a whole batch of a large vocabulary: each product with the table reads all of it, and the
/// gradient of the table is read and written, so those that can wait for more rows do.
struct Head {
  ParamRef weight;  ///< [V, C]; a tied embedding's or its own
  int64_t channels = 0;
  int64_t rows_of_table = 0;  ///< V, padding rows included
  // A GPU's products are given thousands of rows: by the data sheet of an H100, not by measurement, 512 rows of
  // gradients read and write the table's gradient, fp32, in about the time of their product. The host's want blocks
  // near its caches.
  int64_t logits_bytes = device_memory_is_host() ? 64 << 20 : 512 << 20;     ///< of a block
  int64_t gradient_bytes = device_memory_is_host() ? 52 << 20 : 1024 << 20;  ///< of a group's gradients of logits
  int64_t vocabulary = 0;  ///< tokens that exist; the rest is never predicted
  float softcap = 0;       ///< c: logits x become c tanh(x / c); 0 = off

  /// Rows whose logits exist at a time, and rows whose gradients do: functions of the shapes alone.
  int64_t block_rows(int64_t rows) const;
  /// Of logits and their gradients: on a GPU rows begin at multiples of 128 bytes, as NVIDIA's guide to products
  /// advises.
  int64_t columns() const { return device_memory_is_host() ? rows_of_table : padded_columns(rows_of_table); }
  int64_t group_rows(DType compute, int64_t rows) const;
  int64_t scratch_bytes(DType compute, int64_t rows) const;
  int64_t workspace_bytes(DType compute, int64_t rows, bool training) const;

  /// Statistics of every row, without gradients. x compute dtype [N, C]; statistics fp32 [N].
  void forward(Context& ctx, const Tensor& x, const Tensor& targets, const TokenStatistics& statistics) const;
  /// Statistics, and for cotangents known in advance dx (compute dtype [N, C]) and the gradient of the weight.
  void forward_backward(Context& ctx, const Tensor& dx, const Tensor& x, const Tensor& targets,
                        const TokenStatistics& statistics, const TokenCotangents& cotangents) const;
  /// logits fp32 [R, V] of rows x [R, C].
  void logits(Context& ctx, const Tensor& out, const Tensor& x) const;
};

}  // namespace llmtrain
