#pragma once
#include <string>

#include "kernels/attention.hpp"
#include "layers/linear.hpp"

namespace llmtrain {

struct AttentionSaved {
  Tensor qkv;  ///< compute dtype [N, (H + 2 G) D], after rope
  Tensor out;  ///< compute dtype [N, H D]
  Tensor lse;  ///< fp32 [H, N]
};

/// Causal self-attention with its projections: x -> q, k, v -> rope -> attention -> output projection.
struct Attention {
  AttentionShape shape;
  Linear qkv;
  Linear projection;
  ParamRef query_norm;  ///< [D] or none: RMSNorm over each head's query, before rope
  ParamRef key_norm;    ///< [D] or none
  bool rope = false;
  double dropout = 0;
  int layer = 0;

  void plan_saved(Arena& arena, AttentionSaved& saved, DType compute, int64_t rows, const std::string& name) const;
  /// Scratch of forward and backward together.
  int64_t scratch_bytes(DType compute, int64_t rows) const;

  /// x [N, C] -> y [N, C], both in the compute dtype. rope_table fp32 [P, D], empty without rope.
  void forward(Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x, const Tensor& rope_table,
               const AttentionSaved& saved) const;
  void backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x,
                const Tensor& rope_table, const AttentionSaved& saved) const;

 private:
  Dropout probability_dropout(const Context& ctx) const;
};

}  // namespace llmtrain
