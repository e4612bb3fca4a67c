#pragma once
#include <algorithm>
#include <vector>

#include "kernels/elementwise.hpp"
#include "layers/adapted_linear.hpp"
#include "layers/sharing/shared_gradients.hpp"

namespace llmtrain {

/// Attention or MLP of a transformer layer, as one layer, or as narrow ones: the blocks of its matrices that this rank
/// computes (Shoeybi et al. 2019, arXiv:1909.08053). The first matrix of a block has some of the outputs, with heads or
/// hidden channels of its own, and the last one as many inputs; the layer's output and the gradient of its input are
/// sums over the blocks of all ranks, in fp32, rounded once.
///
/// A Layer has a type Saved, first() and last(), its matrices, and last_input(saved), that of the last one.
template <class Layer>
struct SplitLayer {
  using Saved = std::vector<typename Layer::Saved>;

  std::vector<Layer> blocks = std::vector<Layer>(1);
  std::optional<TensorShare> share;  ///< set if it is split
  Linear sum;                        ///< bias, B and magnitudes of the last matrix, if it is split
  int64_t groups = 1;                ///< groups of rows whose gradients are apart

  /// Makes it a split layer: declares what its blocks share, for the sum of the last matrix's products, and, returned,
  /// of the first matrix.
  Linear declare_shared(UnitBuilder& unit, const LinearShape& first, const LinearShape& last, const TensorShare& of,
                        const AdapterRule& rule) {
    share = of;
    sum = Linear::declare_shared(unit, last, LinearBlock::Side::inputs, rule);
    return Linear::declare_shared(unit, first, LinearBlock::Side::outputs, rule);
  }
  Layer& whole() { return blocks.front(); }
  const Layer& front() const { return blocks.front(); }

  template <class F>
  void visit_saved(Saved& s, DType compute, int64_t rows, const F& f, const char* part) const {
    s.resize(blocks.size());
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i].visit_saved(s[i], compute, rows, f, part);
  }

  int64_t scratch_bytes(DType compute, DType output, int64_t rows) const {
    if (!share) return front().scratch_bytes(compute, output, rows);
    const int64_t channels = sum.out;
    return front().scratch_bytes(compute, DType::f32, rows) + BlockSum::scratch_bytes(*share, rows * channels) +
           SharedGradients::scratch_bytes(*share, shared_params(), groups) +
           WholeRowNorms::scratch_bytes(*share, front().last(), compute);
  }
  int64_t workspace_bytes(DType compute, DType output, int64_t rows, bool training) const {
    const DType of_term = share ? DType::f32 : output;
    return std::max(front().first().workspace_bytes(compute, compute, rows, training),
                    front().last().workspace_bytes(compute, of_term, rows, training));
  }
  /// FLOPs of all blocks, of which each has those of f(block).
  template <class F>
  double flops(const F& f) const {
    return (share ? static_cast<double>(share->blocks) : 1.0) * f(front());
  }
  /// True if a parameter of the last matrix is trained.
  bool trains_last() const { return front().last().is_trained() || (share && sum.bias.is_trained()); }

  /// y [N, C]: output of the last matrices, whose inputs `saved` has.
  void project(Context& ctx, const Batch& batch, const Tensor& y, const Saved& saved) const {
    const int64_t n = batch.tokens;
    if (!share) return front().last().forward(ctx, batch, y, first_rows(front().last_input(saved.front()), n));
    Arena::Frame frame(ctx.arena);
    const WholeRowNorms norms(ctx, frame, last_blocks());
    BlockSum terms(*ctx.tensor, frame, n, sum.out);
    for (size_t i = 0; i < blocks.size(); ++i) {
      blocks[i].last().forward(ctx, batch, terms.next(), first_rows(blocks[i].last_input(saved[i]), n));
      terms.add(ctx.stream);
    }
    add_bias(y, terms.finish(ctx.stream), sum.bias.weight(ctx), ctx.stream);
  }

  /// An empty dx is not computed. `more`: further arguments of Layer::backward before the saved tensors.
  template <class... More>
  void backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x,
                const Saved& saved, const More&... more) const {
    if (!share) return front().backward(ctx, batch, dx, dy, x, more..., saved.front());
    Arena::Frame frame(ctx.arena);
    const WholeRowNorms norms(ctx, frame, last_blocks());
    SharedGradients shared(ctx, frame, shared_params(), groups);
    std::optional<BlockSum> terms;
    if (!dx.empty()) terms.emplace(*ctx.tensor, frame, batch.tokens, dx.dim(1));
    for (size_t i = 0; i < blocks.size(); ++i) {
      shared.begin_block();
      blocks[i].backward(ctx, batch, terms ? terms->next() : Tensor(), dy, x, more..., saved[i]);
      shared.end_block();
      if (terms) terms->add(ctx.stream);
    }
    sum.backward_bias(ctx, dy);
    shared.finish();
    if (terms) cast(dx, terms->finish(ctx.stream), ctx.stream);
  }

  /// Trained parameters that all blocks share.
  std::vector<SharedParam> shared_params() const {
    std::vector<SharedParam> params;
    front().append_shared(params);
    return params;
  }
  /// The last matrices of the blocks.
  std::vector<const Linear*> last_blocks() const {
    std::vector<const Linear*> linears;
    for (const Layer& block : blocks) linears.push_back(&block.last());
    return linears;
  }
};

}  // namespace llmtrain
