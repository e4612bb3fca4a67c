#pragma once
#include <string>

#include "layers/attention.hpp"
#include "layers/mlp.hpp"
#include "layers/norm.hpp"

namespace llmtrain {

/// Activations of one block, kept from the forward to the backward pass.
struct BlockSaved {
  Tensor input;            ///< fp32 [N, C], the residual stream that enters
  Tensor attention_input;  ///< compute dtype [N, C]
  AttentionSaved attention;
  Tensor middle;     ///< fp32 [N, C], the residual stream between attention and MLP (post-norm: before norm 1)
  Tensor mlp_input;  ///< compute dtype [N, C]
  MlpSaved mlp;
  Tensor sum;  ///< fp32 [N, C], post-norm only: before norm 2
  NormSaved norm1;
  NormSaved norm2;
};

/// One transformer layer. Pre-norm: x += attention(norm1(x)); x += mlp(norm2(x)). Post-norm (Vaswani et al. 2017):
/// x = norm1(x + attention(x)); x = norm2(x + mlp(x)). The residual stream is fp32.
struct Block {
  Norm norm1;
  Attention attention;
  Norm norm2;
  Mlp mlp;
  Norm post_attention;  ///< of sandwich norms: on what the branch adds
  Norm post_mlp;
  bool pre_norm = true;
  double dropout = 0;
  int layer = 0;
  int64_t channels = 0;

  void plan_saved(Arena& arena, BlockSaved& saved, DType compute, int64_t rows, const std::string& name) const;
  int64_t scratch_bytes(DType compute, int64_t rows) const;

  /// saved.input -> output (fp32 [N, C]).
  void forward(Context& ctx, const Batch& batch, const Tensor& output, const Tensor& rope_table,
               const BlockSaved& saved) const;
  /// dx fp32 [N, C]: gradient of the output on entry, of the input on return.
  void backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& rope_table,
                const BlockSaved& saved) const;

 private:
  Dropout residual_dropout(const Context& ctx, int branch) const;
  void forward_post_norm(Context& ctx, const Batch& batch, const Tensor& output, const Tensor& rope_table,
                         const BlockSaved& saved) const;
  void backward_post_norm(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& rope_table,
                          const BlockSaved& saved) const;
};

}  // namespace llmtrain
