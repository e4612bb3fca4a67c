#pragma once
#include <optional>
#include <vector>

#include "layers/head.hpp"
#include "layers/sharing/shared_gradients.hpp"

namespace llmtrain {

/// The output layer, as one, or as blocks of the vocabulary of which this rank computes some: logits exist by block,
/// and the statistics of a row are formed from those of all blocks, in their order. All blocks but the last have the
/// same number of rows.
struct SplitHead {
  std::vector<Head> blocks = std::vector<Head>(1);
  std::optional<TensorShare> share;  ///< set if it is split
  int64_t rows = 0;                  ///< V of all blocks, padding included
  int64_t vocabulary = 0;            ///< tokens of all blocks

  Head& whole() { return blocks.front(); }
  const Linear& front() const { return blocks.front().linear; }
  /// Rows of every block but the last.
  static int64_t rows_of_block(int64_t rows, int64_t blocks) { return (rows + blocks - 1) / blocks; }
  /// Trained parameters that all blocks share.
  std::vector<SharedParam> shared_params() const;
  /// FLOPs of the products of one token's forward and backward pass.
  double product_flops(bool input_gradient) const;

  int64_t scratch_bytes(DType compute, int64_t tokens) const;
  int64_t workspace_bytes(DType compute, int64_t tokens, bool training) const;

  // The passes of Head.
  void forward(Context& ctx, const Batch& batch, const Tensor& x, const TokenStatistics& statistics) const;
  void forward_backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& x,
                        const TokenStatistics& statistics, const TokenCotangents& cotangents) const;
  void logits(Context& ctx, const Tensor& out, const Tensor& x) const;

 private:
  void score_rows(Context& ctx, const Batch& batch, const Tensor& x, const std::vector<Tensor>& logits,
                  const Tensor& parts, const TokenStatistics& statistics) const;
  void backward(Context& ctx, const Batch& batch, const Tensor& dx, const std::vector<Tensor>& dlogits,
                const Tensor& x) const;
  int64_t parts_bytes(int64_t tokens) const {
    return share->blocks * tokens * static_cast<int64_t>(sizeof(LogprobPart));
  }
};

}  // namespace llmtrain
