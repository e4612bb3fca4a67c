#pragma once
#include <algorithm>

#include "kernels/logprob.hpp"
#include "kernels/matmul.hpp"
#include "layers/linear.hpp"

namespace llmtrain {

/// The output layer: final hidden states -> per-token statistics. Logits exist for a block of rows at a time, their
/// gradients for a group of blocks, never for a whole batch of a large vocabulary. Each product with the table reads
/// all of it, and the table's gradient is read and written, so that larger groups need less memory traffic.
struct Head {
  /// [V, C], padding rows included; the matrix is shared with a tied embedding, or separate. Adapters of it are its
  /// own.
  Linear linear;
  // Memory budgets. A GPU's products get thousands of rows: by the data sheet of an H100, not by measurement, reading
  // and writing the table's fp32 gradient takes about as long as the product of 512 rows of gradients. On the host,
  // blocks should fit near its caches.
  int64_t logits_bytes = device_memory_is_host() ? 64 << 20 : 512 << 20;     ///< bytes of a block's logits
  int64_t gradient_bytes = device_memory_is_host() ? 52 << 20 : 1024 << 20;  ///< bytes of a group's logit gradients
  int64_t vocabulary = 0;  ///< number of tokens; the padding rows are never predicted
  // Fields of a block of the vocabulary (SplitHead).
  int64_t first_token = 0;
  int64_t all_tokens = 0;     ///< of all blocks; 0: there is one
  int64_t split_columns = 0;  ///< those of all blocks, if each were as wide as the widest
  float scale = 1;            ///< factor on logits
  float softcap = 0;          ///< c: logits x become c tanh(x / c); 0 = off

  /// Numbers of rows whose logits, and whose gradients, exist at a time: functions of the shapes alone.
  int64_t block_rows(int64_t rows) const;
  /// Row stride of logits and their gradients: on a GPU rows begin at multiples of 128 bytes, as NVIDIA's guide to
  /// matrix products advises. Those of DoRA have no gaps.
  int64_t columns() const {
    return device_memory_is_host() || linear.has_magnitudes() ? linear.out : padded_columns(linear.out);
  }
  int64_t group_rows(DType compute, int64_t rows) const;
  int64_t scratch_bytes(DType compute, int64_t rows) const;
  int64_t workspace_bytes(DType compute, int64_t rows, bool training) const;

  /// Columns that are tokens; a block may have only padding.
  TokenRange tokens() const {
    const int64_t all = all_tokens == 0 ? vocabulary : all_tokens;
    return {std::min(first_token, all), vocabulary, all};
  }

  /// Computes statistics of every row of the batch, without gradients. x compute dtype [N, C]; statistics fp32 [N].
  /// They are those of the distribution that is sampled from at the context's temperature among the batch's kept tokens
  /// (temper_logits).
  void forward(Context& ctx, const Batch& batch, const Tensor& x, const TokenStatistics& statistics) const;
  /// Computes statistics, without mean_logit, and, for given cotangents, dx (compute dtype [N, C]; it may be x) unless
  /// it is empty, and the gradients of the weight and of adapters that are trained.
  void forward_backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& x,
                        const TokenStatistics& statistics, const TokenCotangents& cotangents) const;
  /// Computes logits fp32 [R, V] of rows x [R, C], whatever the temperature. Not in training.
  void logits(Context& ctx, const Tensor& out, const Tensor& x) const { logits(ctx, {}, out, x); }

  // Steps of both.
  /// Calls f(first, count) for runs of at most `most` of n rows.
  template <class F>
  static void each_run(int64_t n, int64_t most, const F& f) {
    for (int64_t first = 0; first < n; first += most) f(first, std::min(most, n - first));
  }
  /// Calls f(first, count) for groups of at most `most` of n rows whose logit gradients exist at a time, where the
  /// context says whether a gradient has earlier rows.
  template <class F>
  static void each_group(Context& ctx, int64_t n, int64_t most, const F& f) {
    ctx.each_row_block(n, [&](int64_t begin, int64_t rows) {
      each_run(rows, most, [&](int64_t first, int64_t count) {
        ctx.later_rows = first > 0;
        f(begin + first, count);
      });
    });
    ctx.later_rows = false;
  }
  void tempered_logits(Context& ctx, const Batch& batch, const Tensor& out, const Tensor& x) const;
  /// dlogits compute dtype, of tempered logits, whose statistics are those of the whole vocabulary.
  void logit_gradients(Context& ctx, const Batch& batch, const Tensor& dlogits, const Tensor& logits,
                       const TokenStatistics& statistics, const TokenCotangents& cotangents) const;
  void backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dlogits, const Tensor& x) const;

 private:
  void logits(Context& ctx, const Batch& batch, const Tensor& out, const Tensor& x) const;
  /// Turns the gradient of tempered logits into that of the product.
  void scale_gradients(Context& ctx, const Batch& batch, const Tensor& dlogits) const;
  int64_t budget_columns() const { return split_columns > 0 ? split_columns : columns(); }
  /// True if an adapter's inputs are masked.
  bool drops(bool training) const {
    return training && !linear.adapters.empty() && linear.adapters.front().dropout > 0;
  }
};

}  // namespace llmtrain
