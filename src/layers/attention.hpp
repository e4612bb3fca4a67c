#pragma once
#include <array>
#include <optional>

#include "kernels/attention.hpp"
#include "kernels/head_norm.hpp"
#include "layers/latent_projection.hpp"
#include "layers/linear.hpp"
#include "layers/rope.hpp"
#include "layers/saved.hpp"

namespace llmtrain {

struct AttentionSaved {
  Tensor qkv;        ///< compute dtype [N, (H + 2 G) D], after norms and rope; of shared rows all, of some heads
  Tensor raw;        ///< with norms: compute dtype [N, (H + G) D], queries and keys before the norms
  Tensor rstd;       ///< with norms: fp32 [N, H + G]
  Tensor out;        ///< compute dtype [N, H D], or [N, H V] of latent heads
  Tensor heads_out;  ///< of shared rows all, of some heads: compute dtype [N, H D / context]
  Tensor lse;        ///< fp32 [H, N], with the sinks
  LatentSaved latent;
};

/// Causal self-attention with its projections: x -> q, k, v -> norms of q and k, where there are any -> rope
/// -> attention -> sinks, where there are any -> output projection. With latent attention x -> low -> q, k, v, values
/// padded with zeros to the width of queries -> rope -> attention -> output projection of what is not padding.
struct Attention {
  using Saved = AttentionSaved;

  AttentionShape shape;
  Linear qkv;                              ///< the first matrix
  std::optional<LatentProjection> latent;  ///< between it and the heads
  Linear projection;
  ParamRef query_norm;  ///< [D], [H D] (norms_whole_rows) or none: RMSNorm over each head's query, before rope
  ParamRef key_norm;    ///< [D], [G D] or none
  ParamRef sinks;       ///< [H] or none: see attention_sinks.hpp
  float norm_epsilon = 1e-6f;
  float norm_weight_offset = 0;
  bool grouped = false;           ///< the first matrix gives its heads by groups (head_groups.hpp)
  bool norms_whole_rows = false;  ///< norms over all heads together, of all blocks
  double dropout = 0;
  int layer = 0;
  size_t cache = 0;  ///< index in KvCache::layers
  // Fields of passes of training, where ranks share the rows of a batch (SharedRows).
  int64_t context = 1;     ///< ranks that share them
  int64_t key_copies = 1;  ///< copies of each key head, of which every rank has one at least

  template <class F>
  void visit_saved(AttentionSaved& s, DType compute, int64_t rows, const F& f, const char* part = "") const {
    constexpr auto again = Recompute::attention;
    f(s.qkv, {part, ".qkv", compute, context * rows, divided_columns() / context, again});
    if (query_norm.exists()) {
      f(s.raw, {part, ".raw", compute, rows, normed_heads() * shape.head_dim, again});
      f(s.rstd, {part, ".rstd", DType::f32, rows, norm_shape().normed(), again});
    }
    if (latent && !latent->split) latent->visit_saved(s.latent, compute, rows, f, part);
    f(s.out, {part, ".out", compute, rows, projection.in, again});
    if (context > 1) f(s.heads_out, {part, ".heads_out", compute, context * rows, out_columns() / context, again});
    f(s.lse, {part, ".lse", DType::f32, shape.heads / context, context * rows, again});
  }
  const Linear& first() const { return qkv; }
  const Linear& last() const { return projection; }
  const Tensor& last_input(const AttentionSaved& saved) const { return saved.out; }
  /// Appends the trained parameters that all blocks share.
  void append_shared(std::vector<SharedParam>& shared) const;
  void append_shared_before(std::vector<SharedParam>& shared) const;  ///< without those of the projection
  /// Scratch bytes for forward and backward; `output` is y's dtype.
  int64_t scratch_bytes(DType compute, DType output, int64_t rows) const;

  /// x [N, C] -> y [N, C]; x has the compute dtype, y the compute dtype or fp32.
  void forward(Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x, const Rope& rope,
               const AttentionSaved& saved) const;
  /// Runs forward() up to the output projection, which reads saved.out.
  void forward_heads(Context& ctx, const Batch& batch, const Tensor& x, const Rope& rope,
                     const AttentionSaved& saved) const;
  /// An empty dx is not computed.
  void backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x, const Rope& rope,
                const AttentionSaved& saved) const;
  /// True if the backward pass needs the gradient of the heads' output, before the projection.
  bool heads_gradient(bool input) const {
    return input || qkv.is_trained() || query_norm.is_trained() || key_norm.is_trained() || sinks.is_trained() ||
           (latent && latent->is_trained());
  }

  HeadNormShape norm_shape() const;
  /// Columns of queries, keys and values without copies.
  int64_t row_columns() const { return (shape.heads + 2 * shape.kv_heads) * shape.head_dim; }

  // The parts of forward_heads() and backward(), for blocks that need sums between them (SplitAttention).
  /// Memory of queries, keys and values of n rows, until the end of the frame.
  Tensor take_rows(const Context& ctx, Arena::Frame& frame, DType dtype, int64_t n, const AttentionSaved& saved) const;
  /// From these, before norms and rope, to saved.out. `squares`: see HeadNormForward.
  void attend_to(Context& ctx, const Batch& batch, const Tensor& rows, const Rope& rope, const AttentionSaved& saved,
                 const Tensor& squares = {}) const;
  /// The gradients of the projection's parameters, and of the rows, before rope and after norms, unless it is empty.
  void backward_heads(Context& ctx, const Batch& batch, const Tensor& dqkv, const Tensor& dy, const Rope& rope,
                      const AttentionSaved& saved) const;
  /// Arguments without gradients of weights.
  HeadNormBackward norm_backward(const Context& ctx, const Tensor& dqkv, const AttentionSaved& saved) const;
  /// dqkv: of the norms' outputs on entry, of their inputs on return. `products`: see HeadNormBackward.
  void backward_norms(Context& ctx, const Tensor& dqkv, const AttentionSaved& saved, const Tensor& products = {}) const;

 private:
  /// Columns of queries, keys and values, with the copies of keys and values.
  std::array<int64_t, 3> parts() const;
  int64_t divided_columns() const;
  /// Columns of what attention writes.
  int64_t out_columns() const { return shape.heads * shape.head_dim; }
  bool is_divided(const Context& ctx) const { return ctx.rows != nullptr && (context > 1 || key_copies > 1); }
  /// The heads that one of the ranks computes which share rows.
  AttentionShape shape_of_rank(int64_t rank) const;
  /// The heads that this rank computes in a pass.
  AttentionShape own_shape(const Context& ctx) const;
  void attend(Context& ctx, const Batch& batch, const Tensor& out, const Tensor& qkv,
              const AttentionSaved& saved) const;
  void attend_backward(Context& ctx, const Batch& batch, const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                       const AttentionSaved& saved) const;
  void attend_to_rows(Context& ctx, const Batch& batch, const Tensor& out, const Tensor& rows,
                      const AttentionSaved& saved) const;
  void attend_divided(Context& ctx, const Tensor& out, const Tensor& rows, const AttentionSaved& saved) const;
  void attend_divided_backward(Context& ctx, const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                               const AttentionSaved& saved) const;
  void add_sinks(Context& ctx, const Tensor& out, const AttentionSaved& saved) const;
  void backward_sinks(Context& ctx, const Tensor& dout, const Tensor& out, const AttentionSaved& saved) const;
  int64_t normed_heads() const { return shape.heads + shape.kv_heads; }
  Dropout probability_dropout(const Context& ctx) const;
};

}  // namespace llmtrain
