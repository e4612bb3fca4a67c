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
  Tensor sum;               ///< fp32 [N, C], post-norm only: before norm 2
  Tensor attention_output;  ///< fp32 [N, C], sandwich norms only: before post_attention
  Tensor mlp_output;        ///< fp32 [N, C], sandwich norms only: before post_mlp
  NormSaved norm1;
  NormSaved norm2;
  NormSaved post_attention;
  NormSaved post_mlp;
};

/// One transformer layer. Pre-norm: x += attention(norm1(x)); x += mlp(norm2(x)). Post-norm (Vaswani et al. 2017):
/// x = norm1(x + attention(x)); x = norm2(x + mlp(x)). Sandwich norms (Gemma 2) are pre-norm with
/// x += post_attention(attention(norm1(x))); x += post_mlp(mlp(norm2(x))). The residual stream is fp32.
struct Block {
  Norm norm1;
  Attention attention;
  Norm norm2;
  Mlp mlp;
  Norm post_attention;
  Norm post_mlp;
  bool pre_norm = true;
  bool sandwich = false;
  double dropout = 0;
  int layer = 0;
  int64_t channels = 0;

  void plan_saved(Arena& arena, BlockSaved& saved, DType compute, int64_t rows, const std::string& name) const;
  int64_t scratch_bytes(DType compute, int64_t rows) const;

  /// saved.input -> output (fp32 [N, C]).
  void forward(Context& ctx, const Batch& batch, const Tensor& output, const Rope& rope, const BlockSaved& saved) const;
  /// dx fp32 [N, C]: gradient of the output on entry, of the input on return.
  void backward(Context& ctx, const Batch& batch, const Tensor& dx, const Rope& rope, const BlockSaved& saved) const;

 private:
  Dropout residual_dropout(const Context& ctx, int branch) const;
  void forward_attention(Context& ctx, const Batch& batch, const Tensor& delta, const Rope& rope,
                         const BlockSaved& saved) const;
  void forward_mlp(Context& ctx, const Batch& batch, const Tensor& delta, const BlockSaved& saved) const;
  void backward_sandwich(Context& ctx, const Norm& norm, const Tensor& ddelta, const Tensor& output,
                         const NormSaved& saved) const;
  void forward_post_norm(Context& ctx, const Batch& batch, const Tensor& output, const Rope& rope,
                         const BlockSaved& saved) const;
  void backward_post_norm(Context& ctx, const Batch& batch, const Tensor& dx, const Rope& rope,
                          const BlockSaved& saved) const;
};

}  // namespace llmtrain
