#pragma once
// Passes of a linear layer with adapters. Without magnitudes y = x W^T + u T^T + b with u = x A^T, where T holds
// scale B of every adapter at its rows and ranks: one product with W, and nothing else of the size of y. With
// magnitudes m (DoRA) y = g (x W^T + u T^T) + b, where g = m / |W + T A| for each row is a constant but for m.
// An adapter's dropout replaces x by drop(x) in u; with magnitudes, as in PEFT, also in (g - 1) x W^T.

#include <span>

#include "layers/linear.hpp"

namespace llmtrain {

void adapted_forward(const Linear& layer, Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x);
void adapted_backward(const Linear& layer, Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy,
                      const Tensor& x);

/// Norms of the rows of a matrix whose blocks have some of the columns each (LinearBlock::Side::inputs): during its
/// life the context has them, unrounded, if the blocks have magnitudes. Collective.
class WholeRowNorms {
 public:
  WholeRowNorms(Context& ctx, Arena::Frame& frame, std::span<const Linear* const> blocks);
  ~WholeRowNorms() { ctx_.row_norms = {}; }
  WholeRowNorms(const WholeRowNorms&) = delete;
  WholeRowNorms& operator=(const WholeRowNorms&) = delete;
  static int64_t scratch_bytes(const TensorShare& share, const Linear& block, DType compute);

 private:
  Context& ctx_;
};

/// Sets the magnitudes of this rank's shard to the norms of the rows of W, whose unit is acquired.
void set_magnitudes(const Linear& layer, ParamStore& params, Stream& stream);
/// Does so for a matrix whose blocks have some of the columns each. Collective.
void set_magnitudes(std::span<const Linear* const> blocks, TensorSum& tensor, ParamStore& params, Stream& stream);

/// Bytes of scratch of both passes; `output` is y's dtype.
int64_t adapter_scratch_bytes(const Linear& layer, DType compute, DType output, int64_t rows);
/// Bytes of workspace of all products.
int64_t adapter_workspace_bytes(const Linear& layer, DType compute, DType output, int64_t rows, bool training);

}  // namespace llmtrain
