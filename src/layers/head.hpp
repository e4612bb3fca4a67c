#pragma once
#include "kernels/logprob.hpp"
#include "kernels/matmul.hpp"
#include "layers/context.hpp"

namespace llmtrain {

/// Targets of rows, and the tokens that they were drawn among.
struct HeadTargets {
  Tensor ids;        ///< int32 [N]
  Tensor kept = {};  ///< Batch::kept

  HeadTargets rows(int64_t begin, int64_t count) const {
    return {ids.rows(begin, count), kept.empty() ? kept : kept.rows(begin, count)};
  }
};

/// The output layer: final hidden states -> per-token statistics. Logits exist for a block of rows at a time, their
/// gradients for a group of blocks, never for a whole batch of a large vocabulary. Each product with the table reads
/// all of it, and the table's gradient is read and written, so that larger groups need less memory traffic.
struct Head {
  ParamRef weight;  ///< [V, C]; shared with a tied embedding, or separate
  int64_t channels = 0;
  int64_t rows_of_table = 0;  ///< V, padding rows included
  // Memory budgets. A GPU's products get thousands of rows: by the data sheet of an H100, not by measurement, reading
  // and writing the table's fp32 gradient takes about as long as the product of 512 rows of gradients. On the host,
  // blocks should fit near its caches.
  int64_t logits_bytes = device_memory_is_host() ? 64 << 20 : 512 << 20;     ///< bytes of a block's logits
  int64_t gradient_bytes = device_memory_is_host() ? 52 << 20 : 1024 << 20;  ///< bytes of a group's logit gradients
  std::optional<QuantizedType> quantized;  ///< storage of the matrix, if it has fewer bits
  int64_t vocabulary = 0;                  ///< number of tokens; the padding rows are never predicted
  float softcap = 0;                       ///< c: logits x become c tanh(x / c); 0 = off

  /// Numbers of rows whose logits, and whose gradients, exist at a time: functions of the shapes alone.
  int64_t block_rows(int64_t rows) const;
  /// Row stride of logits and their gradients: on a GPU rows begin at multiples of 128 bytes, as NVIDIA's guide to
  /// matrix products advises.
  int64_t columns() const { return device_memory_is_host() ? rows_of_table : padded_columns(rows_of_table); }
  int64_t group_rows(DType compute, int64_t rows) const;
  int64_t scratch_bytes(DType compute, int64_t rows) const;
  int64_t workspace_bytes(DType compute, int64_t rows, bool training) const;

  /// Computes statistics of every row, without gradients. x compute dtype [N, C]; statistics fp32 [N]. They are those
  /// of the distribution that is sampled from at the context's temperature among the kept tokens (temper_logits).
  void forward(Context& ctx, const Tensor& x, const HeadTargets& targets, const TokenStatistics& statistics) const;
  /// Computes statistics, without mean_logit, and, for given cotangents, dx (compute dtype [N, C]) unless it is empty,
  /// and the gradient of the weight if it is trained.
  void forward_backward(Context& ctx, const Tensor& dx, const Tensor& x, const HeadTargets& targets,
                        const TokenStatistics& statistics, const TokenCotangents& cotangents) const;
  /// Computes logits fp32 [R, V] of rows x [R, C], whatever the temperature.
  void logits(Context& ctx, const Tensor& out, const Tensor& x) const;

 private:
  void tempered_logits(Context& ctx, const Tensor& out, const Tensor& x, const Tensor& kept) const;
};

}  // namespace llmtrain
