#pragma once

#include "kernels/latent_heads.hpp"
#include "layers/linear.hpp"
#include "layers/norm.hpp"

namespace llmtrain {

struct LatentSaved {
  Tensor low;  ///< compute dtype [N, K], output of the first matrix
  NormSaved query_norm, key_norm;
};

/// Inputs of the matrices of queries, and of keys and values: compute dtype [N, ..].
struct LatentInputs {
  Tensor query;  ///< the normed latent query, or the layer's input
  Tensor key;    ///< the normed latent of keys and values
};

/// From the output of the first matrix of multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1) to
/// queries, keys and values for attention. The first matrix has the rows of the latent query, or of all queries where
/// there is none, then those of the latent of keys and values, then those of the rotated part of keys. Blocks of heads
/// that are split have a projection each: its matrices have the rows of its heads, and its first matrix has none of
/// them.
struct LatentProjection {
  LatentHeads heads;
  int64_t query_rank = 0;  ///< columns of the latent query; 0: the first matrix gives the queries
  int64_t key_rank = 0;    ///< columns of the latent of keys and values
  Norm query_norm;
  Linear query;  ///< [H D, query_rank], or [H D, C] if it is split
  Norm key_norm;
  Linear keys;         ///< [H (plain + V), key_rank]: plain parts of keys, and values
  bool split = false;  ///< into blocks, which share LatentSaved

  /// K, rows of the first matrix.
  int64_t low_columns() const { return first_key_column() + key_rank + heads.rotated; }
  /// Columns that attention writes, with the zeros behind values, and those of the values alone.
  int64_t wide_columns() const { return heads.query_columns(); }
  int64_t value_columns() const { return heads.heads * heads.value; }

  template <class F>
  void visit_saved(LatentSaved& s, DType compute, int64_t rows, const F& f, const char* part) const {
    constexpr auto again = Recompute::attention;
    f(s.low, SavedSpec{part, ".low", compute, rows, low_columns(), again});
    if (query_rank > 0) f(s.query_norm.rstd, SavedSpec{part, ".query_rstd", DType::f32, rows, 0, again});
    f(s.key_norm.rstd, SavedSpec{part, ".key_rstd", DType::f32, rows, 0, again});
  }
  bool is_trained() const {
    return query.is_trained() || keys.is_trained() || query_norm.is_trained() || key_norm.is_trained();
  }
  /// Scratch bytes for forward and backward.
  int64_t scratch_bytes(DType compute, int64_t rows) const;
  int64_t split_scratch_bytes(DType compute, int64_t rows) const;
  int64_t workspace_bytes(DType compute, int64_t rows, bool training) const;
  /// FLOPs of the products of one token.
  double product_flops(bool input_gradient) const;

  /// Expands the rows of saved.low to qkv [N, 3 H D].
  void forward(Context& ctx, const Batch& batch, const Tensor& qkv, const LatentSaved& saved) const;
  /// Computes dlow [N, K], and the gradients of trained parameters.
  void backward(Context& ctx, const Batch& batch, const Tensor& dlow, const Tensor& dqkv,
                const LatentSaved& saved) const;

  /// The inputs of the blocks' matrices, in memory of the frame. again: `saved` has the statistics of the norms.
  LatentInputs inputs(Context& ctx, Arena::Frame& frame, const Tensor& x, const LatentSaved& saved, bool again) const;
  /// Expands them to a block's qkv [N, 3 H D].
  void forward_block(Context& ctx, const Batch& batch, const Tensor& qkv, const LatentInputs& inputs,
                     const LatentSaved& saved) const;
  /// Computes a block's terms, fp32: dlatents [N, K] of the normed latents and the rotated part of keys, and dx [N, C],
  /// unless it is empty, where queries are products of the layer's input; and the gradients of its parameters.
  void backward_block(Context& ctx, const Batch& batch, const Tensor& dlatents, const Tensor& dx, const Tensor& dqkv,
                      const LatentInputs& inputs) const;
  /// Turns the sum of dlatents into dlow [N, K], compute dtype.
  void backward_latents(Context& ctx, const Tensor& dlow, const Tensor& dlatents, const LatentSaved& saved) const;

  /// Cut values [N, H V] out of what attention writes, [N, H D], and the reverse.
  void cut(const Tensor& values, const Tensor& wide, Stream& stream) const;
  void pad(const Tensor& wide, const Tensor& values, Stream& stream) const;

 private:
  int64_t first_key_column() const { return query_rank > 0 || split ? query_rank : heads.query_columns(); }
  /// A latent vector: columns of low, their norm, and the matrix that expands it.
  struct Latent {
    int64_t first, rank;
    const Norm& norm;
    const Linear& linear;
    NormSaved saved;
  };
  Latent query_latent(const LatentSaved& saved, int64_t rows) const {
    return {0, query_rank, query_norm, query, {{}, first_rows(saved.query_norm.rstd, rows)}};
  }
  Latent key_latent(const LatentSaved& saved, int64_t rows) const {
    return {first_key_column(), key_rank, key_norm, keys, {{}, first_rows(saved.key_norm.rstd, rows)}};
  }
  static void normalize(Context& ctx, const Tensor& normed, const Tensor& wide, const Tensor& low, const Latent& latent,
                        bool again);
  static void expand(Context& ctx, const Batch& batch, const Tensor& y, const Tensor& low, const Latent& latent);
  static void expand_backward(Context& ctx, const Batch& batch, const Tensor& dlow, const Tensor& dy, const Tensor& low,
                              const Latent& latent);
};

}  // namespace llmtrain
