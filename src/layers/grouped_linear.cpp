#include "layers/grouped_linear.hpp"

#include <algorithm>

#include "kernels/grouped_matmul.hpp"
#include "params/number_hook.hpp"

namespace llmtrain {

namespace {

/// Lets blocks of rows be those of a layer while it lives.
class RowBlocksOf {
 public:
  RowBlocksOf(Context& ctx, const LinearRows& layer) : ctx_(ctx) { ctx.pair_block_ends = layer.block_ends; }
  ~RowBlocksOf() { ctx_.pair_block_ends.clear(); }
  RowBlocksOf(const RowBlocksOf&) = delete;
  RowBlocksOf& operator=(const RowBlocksOf&) = delete;

 private:
  Context& ctx_;
};

/// Gradients of matrices that are written in one call.
class WeightGradients {
 public:
  WeightGradients(Context& ctx, const Tensor& dy, const Tensor& x) : ctx_(ctx), dy_(dy), x_(x) {}

  /// Rows [first, ..) are those of the layer. Matrices whose gradient is written in blocks are written at once.
  void add(const LinearRows& layer, int64_t first) {
    const Linear& linear = *layer.linear;
    if (!linear.weight.is_trained()) return;
    const RowBlocksOf rows(ctx_, layer);
    ParamStore::RowBlocks blocks = ctx_.params.row_blocks(linear.weight.unit, linear.weight.param);
    while (blocks.next()) {
      bool whole = false;
      ctx_.each_row_block(layer.rows, [&](int64_t begin, int64_t count) {
        const Tensor dw = blocks.gradient();
        whole = dw.dim(0) == linear.out;
        gradients_.push_back({dw, blocks.first_row(), first + begin, count});
        layers_.push_back(&linear);
      });
      if (whole) break;
      write();
    }
    if (!gradients_.empty()) open_.push_back(blocks);
  }
  void write() {
    grouped_backward_weight(gradients_, dy_, x_, ctx_.params.accumulate(), ctx_.stream);
    for (size_t i = 0; i < gradients_.size(); ++i) {
      layers_[i]->zero_fixed_rows(gradients_[i].dw, gradients_[i].first_row, ctx_.stream);
    }
    gradients_.clear();
    layers_.clear();
    for (ParamStore::RowBlocks& blocks : open_) blocks.next();
    open_.clear();
  }

 private:
  Context& ctx_;
  const Tensor &dy_, &x_;
  std::vector<MatrixGradient> gradients_;
  std::vector<const Linear*> layers_;        ///< of the gradients
  std::vector<ParamStore::RowBlocks> open_;  ///< of whole matrices, until they are written
};

}  // namespace

void grouped_forward(Context& ctx, std::span<const LinearRows> layers, const Tensor& y, const Tensor& x) {
  std::vector<MatrixRows> matrices;
  for (const LinearRows& layer : layers) {
    if (layer.rows == 0) continue;
    const Linear& linear = *layer.linear;
    const Tensor w = linear.weight.matrix(ctx).dense();
    if (number_hook != nullptr) number_hook(NumberKind::weights, linear.weight.unit, w, ctx.stream);
    matrices.push_back({w, linear.bias.weight(ctx), layer.rows});
  }
  grouped_forward(y, x, matrices, ctx.role, ctx.stream);
  int64_t first = 0;
  for (const LinearRows& layer : layers) {
    if (number_hook != nullptr && layer.rows > 0) {
      number_hook(NumberKind::result, layer.linear->weight.unit, y.rows(first, layer.rows), ctx.stream);
    }
    first += layer.rows;
  }
}

void grouped_backward_input(Context& ctx, std::span<const LinearRows> layers, const Tensor& dx, const Tensor& dy) {
  std::vector<MatrixRows> matrices;
  for (const LinearRows& layer : layers) {
    const RowBlocksOf rows(ctx, layer);
    const Tensor w = layer.linear->weight.matrix(ctx).dense();
    // The order of a product may depend on its rows.
    ctx.each_row_block(layer.rows, [&](int64_t, int64_t count) { matrices.push_back({w, {}, count}); });
  }
  grouped_backward_input(dx, dy, matrices, ctx.stream);
}

void grouped_backward_parameters(Context& ctx, std::span<const LinearRows> layers, const Tensor& dy, const Tensor& x) {
  WeightGradients gradients(ctx, dy, x);
  int64_t end = dy.dim(0);
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    end -= layer->rows;
    gradients.add(*layer, end);
  }
  gradients.write();
  for (const LinearRows& layer : layers) {
    const RowBlocksOf rows(ctx, layer);
    layer.linear->backward_bias(ctx, dy.rows(end, layer.rows));
    end += layer.rows;
  }
}

bool writes_gradients_together(const Context& ctx, std::span<const LinearRows> layers) {
  return std::ranges::all_of(layers, [&](const LinearRows& layer) {
    const ParamRef& weight = layer.linear->weight;
    return !weight.is_trained() || ctx.params.reducer().has_whole_gradient(weight.unit);
  });
}

}  // namespace llmtrain
