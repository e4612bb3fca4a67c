#pragma once
#include <span>
#include <vector>

#include "layers/attention.hpp"
#include "layers/sharing/split_layer.hpp"

namespace llmtrain {

/// Attention whose heads are blocks. Where blocks need numbers of all heads before they go on, they run in two phases,
/// with sums over all blocks between: norms over all heads need their squares, forward, and the products of slopes with
/// values, backward. Latent vectors, and the matrix that gives them, are no block's: every rank computes them alike, of
/// the sum of their gradients over the blocks.
struct SplitAttention : SplitLayer<Attention> {
  Linear low;  ///< the rows of latent attention's first matrix that are not of heads, if it is split

  template <class F>
  void visit_saved(Saved& s, DType compute, int64_t rows, const F& f, const char* part) const {
    SplitLayer::visit_saved(s, compute, rows, f, part);
    if (splits_latent()) front().latent->visit_saved(s.front().latent, compute, rows, f, part);
  }
  int64_t scratch_bytes(DType compute, DType output, int64_t rows) const;
  int64_t workspace_bytes(DType compute, DType output, int64_t rows, bool training) const;
  /// See Attention::heads_gradient().
  bool heads_gradient(bool input) const { return front().heads_gradient(input) || low.is_trained(); }

  void forward_heads(Context& ctx, const Batch& batch, const Tensor& x, const Rope& rope, const Saved& saved) const;
  /// An empty dx is not computed.
  void backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x,
                const Saved& saved, const Rope& rope) const;

  bool splits_norms() const { return share && front().norms_whole_rows; }
  bool splits_latent() const { return share && front().latent; }
  /// True if the gradient of the input is a sum over the blocks.
  bool sums_input() const { return !splits_latent() || front().latent->query_rank == 0; }
  /// Trained parameters that all blocks share: of the matrices before the heads, and of the last one.
  std::vector<SharedParam> shared_before() const;
  std::vector<SharedParam> shared_after() const;

 private:
  bool has_phases() const { return splits_norms() || splits_latent(); }
  void project_rows(Context& ctx, const Batch& batch, const Tensor& rows, const LatentInputs& inputs, size_t i,
                    const Saved& saved) const;
  void backward_heads(Context& ctx, const Batch& batch, std::span<const Tensor> dqkv, const Tensor& dy,
                      const Rope& rope, const Saved& saved, BlockSum* products) const;
  void backward_low(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& x, const Tensor& dlatents,
                    const Tensor& dterms, const Saved& saved) const;
};

}  // namespace llmtrain
