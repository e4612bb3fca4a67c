#pragma once
#include <vector>

#include "layers/experts.hpp"
#include "layers/mlp.hpp"
#include "layers/norm.hpp"
#include "layers/sharing/split_attention.hpp"
#include "layers/sharing/split_layer.hpp"

namespace llmtrain {

/// Activations of one block, kept from the forward to the backward pass.
struct BlockSaved {
  Tensor input;            ///< fp32 [N, C], the residual stream at the input
  Tensor attention_input;  ///< compute dtype [N, C]
  std::vector<AttentionSaved> attention;
  Tensor delta;      ///< compute dtype [N, C], output of the attention branch; if it is kept, `middle` is not
  Tensor middle;     ///< fp32 [N, C], the residual stream between attention and MLP (post-norm: before norm 1)
  Tensor mlp_input;  ///< compute dtype [N, C]
  std::vector<MlpSaved> mlp;
  ExpertsSaved experts;
  Tensor sum;               ///< fp32 [N, C], post-norm only: before norm 2
  Tensor attention_output;  ///< fp32 [N, C], sandwich norms only: before post_attention
  Tensor mlp_output;        ///< fp32 [N, C], sandwich norms only: before post_mlp
  NormSaved norm1;
  NormSaved norm2;
  NormSaved post_attention;
  NormSaved post_mlp;
};

/// Norms that pre-norm blocks join to the sums before them, so that a sum is not read back from memory. `normed` has
/// the compute dtype, [N, C].
struct JoinedNorms {
  Tensor normed;               ///< norm1 of the block's input, if has_input; at the end the next norm of its output
  bool has_input = false;      ///< the block before has computed norm1
  const Norm* next = nullptr;  ///< the norm of the output; null: it runs later
  const NormSaved* next_saved = nullptr;
};

/// One transformer layer. Pre-norm: x += attention(norm1(x)); x += mlp(norm2(x)). Post-norm (Vaswani et al. 2017):
/// x = norm1(x + attention(x)); x = norm2(x + mlp(x)). The MLP may be a mixture of experts. Sandwich norms (Gemma 2)
/// are pre-norm with x += post_attention(attention(norm1(x))); x += post_mlp(mlp(norm2(x))), and OLMo 2 has these
/// without norm1 and norm2. Parallel (GPT-NeoX, Falcon): x += attention(norm1(x)) + mlp(norm2(x)), and without norm2
/// both read norm1(x). Outputs of branches may have a factor (Granite). The residual stream is fp32.
struct Block {
  Norm norm1;
  SplitAttention attention;
  Norm norm2;
  SplitLayer<Mlp> mlp;             ///< without matrices where there are experts
  std::optional<Experts> experts;  ///< in place of it
  Norm post_attention;
  Norm post_mlp;
  bool pre_norm = true;
  bool sandwich = false;
  bool parallel = false;   ///< pre-norm, without experts
  float branch_scale = 1;  ///< factor on the outputs of attention and MLP
  double dropout = 0;
  int layer = 0;
  int64_t channels = 0;

  template <class F>
  void visit_saved(BlockSaved& s, DType compute, int64_t rows, const F& f) const {
    const auto residual = [&](Tensor& t, const char* what) {
      f(t, SavedSpec{"", what, DType::f32, rows, channels, Recompute::block});
    };
    const auto branch = [&](Tensor& t, const char* what) {  // recomputed by one pass over the stream
      f(t, SavedSpec{"", what, compute, rows, channels, Recompute::none});
    };
    f(s.input, SavedSpec{"", ".input", DType::f32, rows, channels});
    branch(s.attention_input, ".attention_input");
    attention.visit_saved(s.attention, compute, rows, f, ".attention");
    if (parallel) {                                 // neither branch reads a sum
    } else if (pre_norm && size_of(compute) < 4) {  // half the bytes, and one pass over the stream recomputes the sum
      f(s.delta, SavedSpec{"", ".delta", compute, rows, channels, Recompute::block});
      f(s.middle, SavedSpec{"", ".middle", DType::f32, rows, channels, Recompute::none});
    } else {
      residual(s.middle, ".middle");
    }
    if (!shares_norm()) branch(s.mlp_input, ".mlp_input");
    visit_saved_of_mlp(s, compute, rows, f);
    if (!pre_norm) residual(s.sum, ".sum");
    norm1.visit_saved(s.norm1, compute, rows, f, ".norm1");
    norm2.visit_saved(s.norm2, compute, rows, f, ".norm2");
    if (!sandwich) return;
    residual(s.attention_output, ".attention_output");
    residual(s.mlp_output, ".mlp_output");
    post_attention.visit_saved(s.post_attention, compute, rows, f, ".post_attention");
    post_mlp.visit_saved(s.post_mlp, compute, rows, f, ".post_mlp");
  }
  /// Those tensors of visit_saved() that depend on whether the block has experts.
  template <class F>
  void visit_saved_of_mlp(BlockSaved& s, DType compute, int64_t rows, const F& f) const {
    if (experts) {
      experts->visit_saved(s.experts, compute, rows, f, ".experts");
    } else {
      mlp.visit_saved(s.mlp, compute, rows, f, ".mlp");
    }
  }
  int64_t scratch_bytes(DType compute, int64_t rows, Recompute level) const;
  int64_t workspace_bytes(DType compute, int64_t rows, bool training) const;

  /// saved.input -> output (fp32 [N, C]). `saved`, in both passes, holds the tensors that plan_kept registered; `all`
  /// gets these and the dropped ones, and may serve one block after the other.
  void forward(Context& ctx, const Batch& batch, const Tensor& output, const Rope& rope, const BlockSaved& saved,
               BlockSaved& all, const JoinedNorms& joined = {}) const;
  /// Gradients that the backward pass forms: those between its end and the first trained parameter, or all if that of
  /// the block's input is needed.
  struct Gradients {
    bool attention_input, heads, attention_output, mlp_input, hidden;
  };
  Gradients gradients(bool input) const;
  /// dx fp32 [N, C]: gradient of the output on entry, of the input on return; undefined there without input_gradient.
  void backward(Context& ctx, const Batch& batch, const Tensor& dx, const Rope& rope, const BlockSaved& saved,
                BlockSaved& all, bool input_gradient = true) const;
  /// FLOPs of the matrix products of one token's forward and backward pass.
  double product_flops(bool input_gradient) const;

 private:
  /// True if attention and MLP read the output of one norm.
  bool shares_norm() const { return parallel && !norm2.exists(); }
  Dropout residual_dropout(const Context& ctx, int branch) const;
  /// Runs one forward pass: `all` has every tensor, `kept` those that outlive the pass. An empty output marks the
  /// recomputation, which only fills the tensors that `kept` lacks.
  struct ForwardPass {
    const BlockSaved& kept;
    const BlockSaved& all;
    const Tensor& output;
    JoinedNorms joined = {};
    bool again() const { return output.empty(); }
    Tensor attention_input(int64_t rows) const {
      return first_rows(joined.has_input ? joined.normed : all.attention_input, rows);
    }
    bool computes_attention_input() const { return !joined.has_input && computes(kept.attention_input); }
    bool computes(const Tensor& kept_tensor) const { return !again() || kept_tensor.empty(); }
  };
  /// Dtype of the branches' outputs.
  DType branch_type(DType compute) const { return sandwich ? DType::f32 : compute; }
  DType compute_type(const Context& ctx) const { return attention.front().projection.weight.matrix(ctx).dtype(); }
  void run_forward(Context& ctx, const Batch& batch, const Rope& rope, const ForwardPass& pass) const;
  void forward_hidden(Context& ctx, const Batch& batch, const Tensor& x, const ForwardPass& pass) const;
  void project_attention(Context& ctx, const Batch& batch, const Tensor& delta, const BlockSaved& all) const;
  void project_mlp(Context& ctx, const Batch& batch, const Tensor& delta, const Tensor& x,
                   const ForwardPass& pass) const;
  void backward_mlp(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x,
                    const BlockSaved& saved, const BlockSaved& kept) const;
  void backward_sandwich(Context& ctx, const Norm& norm, const Tensor& ddelta, const Tensor& output,
                         const NormSaved& saved) const;
  void scale_branch(const Tensor& delta, Stream& stream) const;
  void add_last_branch(Context& ctx, const Batch& batch, const ForwardPass& pass, const Tensor& in,
                       const Tensor& delta) const;
  void forward_parallel(Context& ctx, const Batch& batch, const Rope& rope, const ForwardPass& pass) const;
  void backward_parallel(Context& ctx, const Batch& batch, const Tensor& dx, const Rope& rope, const ForwardPass& pass,
                         const Gradients& wanted) const;
  void forward_post_norm(Context& ctx, const Batch& batch, const Rope& rope, const ForwardPass& pass) const;
  void backward_post_norm(Context& ctx, const Batch& batch, const Tensor& dx, const Rope& rope, const ForwardPass& pass,
                          const Gradients& wanted) const;
};

}  // namespace llmtrain
