#include "layers/embedding.hpp"

#include <algorithm>

#include "kernels/adapter.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/embedding.hpp"
#include "kernels/matmul.hpp"
#include "kernels/workspace.hpp"

namespace llmtrain {

namespace {

/// Passes of one adapter: x += factor u T^T, where row n of u is A's row of the n-th id, and T = scale B.
class TablePass {
 public:
  TablePass(const TableAdapter& adapter, Context& ctx, const Batch& batch, const Tensor& ids, float factor)
      : adapter_(adapter), ctx_(ctx), batch_(batch), factor_(factor), frame_(ctx.arena) {
    batch_.ids = ids;
    const Tensor b = adapter.b.weight(ctx);
    t_ = frame_.take(b.dtype, {b.dim(0), b.dim(1)});
    set_block(t_, {}, b, adapter.scale, ctx.stream);
    wide_u_ = frame_.take(DType::f32, {batch.tokens, adapter.rank});
    u_ = b.dtype == DType::f32 ? wide_u_ : frame_.take(b.dtype, {batch.tokens, adapter.rank});
    embedding_forward(wide_u_, adapter.a.weight(ctx), {}, 1, batch_, {}, ctx.stream);
    if (u_.dtype != DType::f32) cast(u_, wide_u_, ctx.stream);
  }

  void forward(const Tensor& x) {
    const Tensor product = frame_.take(DType::f32, {x.dim(0), x.dim(1)});
    linear_forward(product, u_, t_, {}, ctx_.stream, ctx_.role);
    set_block(x, {}, product, factor_, ctx_.stream, true);
  }

  /// dx is that of the sum, compute dtype. A's row `padding` gets nothing.
  void backward(const Tensor& dx, int32_t padding) {
    const Tensor dt = frame_.take(DType::f32, {t_.dim(0), t_.dim(1)});
    linear_backward_weight(dt, dx, u_, false, ctx_.stream);
    get_block(adapter_.b.gradient(ctx_), dt, {}, adapter_.scale * factor_, ctx_.accumulate(), ctx_.stream);
    linear_backward_input(wide_u_, dx, t_, false, ctx_.stream);  // it becomes the gradient of u
    const Tensor da = adapter_.a.gradient(ctx_);
    if (!ctx_.accumulate()) fill(da, 0, ctx_.stream);
    embedding_backward(da, {}, wide_u_, factor_, batch_, {}, ctx_.stream, padding);
  }

 private:
  const TableAdapter& adapter_;
  Context& ctx_;
  Batch batch_;
  float factor_;
  Arena::Frame frame_;
  Tensor t_, wide_u_, u_;
};

}  // namespace

TableAdapter TableAdapter::declare(UnitBuilder& unit, const std::string& module, int64_t rows, int64_t channels,
                                   const AdapterRule& rule) {
  const std::optional<AdapterShape> shape = rule ? rule(module) : std::nullopt;
  if (!shape) return {};
  LLMTRAIN_CHECK(shape->rank > 0 && !shape->dora, "a table's adapter has a rank and no magnitudes: " + module);
  const std::string a = lora_embedding_a_name(module);
  TableAdapter adapter;
  adapter.a = unit.trained({a, rows, shape->rank, true, Initializer::zeros(), {{a, 0, rows, /*transposed=*/true}}});
  adapter.b = unit.trained({lora_embedding_b_name(module), channels, shape->rank, true, Initializer::normal(1), {}});
  adapter.rank = shape->rank;
  adapter.scale = static_cast<float>(shape->scale);
  return adapter;
}

/// x = scale table[ids] + positions. A token's row is that of one block, to which the others add zeros.
void Embedding::sum_blocks(Context& ctx, const Batch& batch, const Tensor& x) const {
  fill_zero(x.data, x.bytes(), ctx.stream);
  for (const TableBlock& block : blocks) {
    add_table_rows(x, block.rows.weight(ctx), block.first, batch.ids, scale, ctx.stream);
  }
  Arena::Frame frame(ctx.arena);
  ctx.tensor->add_ranks(x, frame.take(DType::f32, {TensorSum::scratch_elements(ctx.tensor->share(), x.numel())}),
                        ctx.stream);
  if (positions.exists()) add_table_rows(x, positions.weight(ctx), 0, batch.positions, 1, ctx.stream);
}

void Embedding::forward(Context& ctx, const Batch& batch, const Tensor& x) const {
  const Dropout mask = step_dropout(ctx, dropout, RandomPurpose::embedding_dropout);
  const bool adapted = ctx.adapters && has_adapters();
  if (blocks.empty()) {
    embedding_forward(x, table.weight(ctx), positions.weight(ctx), scale, batch, adapted ? Dropout{} : mask,
                      ctx.stream);
    if (!adapted) return;
  } else {
    sum_blocks(ctx, batch, x);
  }
  if (adapted && table_adapter.exists()) TablePass(table_adapter, ctx, batch, batch.ids, scale).forward(x);
  if (adapted && positions_adapter.exists()) TablePass(positions_adapter, ctx, batch, batch.positions, 1).forward(x);
  if (mask.active()) dropout_rows(x, x, batch, mask, false, ctx.stream);
}

void Embedding::backward(Context& ctx, const Batch& batch, const Tensor& dx, bool table_written) const {
  ctx.each_row_block(batch.tokens, [&](int64_t first, int64_t count) {
    backward_rows(ctx, batch.rows(first, count), dx.rows(first, count), table_written);
  });
}

void Embedding::backward_rows(Context& ctx, const Batch& batch, const Tensor& dx, bool table_written) const {
  const Tensor dpositions = positions.gradient(ctx);
  const Dropout mask = step_dropout(ctx, dropout, RandomPurpose::embedding_dropout);
  if (!ctx.params.accumulate() && !dpositions.empty()) fill(dpositions, 0, ctx.stream);
  const auto add = [&](const Tensor& dtable, const Tensor& dplaces, int64_t first) {
    if (!ctx.params.accumulate() && !table_written && !dtable.empty()) fill(dtable, 0, ctx.stream);
    embedding_backward(dtable, dplaces, dx, scale, batch, mask, ctx.stream, padding, first);
  };
  add(table.gradient(ctx), dpositions, 0);
  for (const TableBlock& block : blocks) add(block.rows.gradient(ctx), {}, block.first);
  if (!ctx.adapters || !has_adapters()) return;
  const DType compute = (table_adapter.exists() ? table_adapter : positions_adapter).b.weight(ctx).dtype;
  Arena::Frame frame(ctx.arena);
  Tensor sum = dx;
  if (mask.active()) {
    sum = frame.take(DType::f32, {dx.dim(0), dx.dim(1)});
    dropout_rows(sum, dx, batch, mask, false, ctx.stream);
  }
  if (compute != DType::f32) {
    const Tensor rounded = frame.take(compute, {dx.dim(0), dx.dim(1)});
    cast(rounded, sum, ctx.stream);
    sum = rounded;
  }
  if (table_adapter.exists()) TablePass(table_adapter, ctx, batch, batch.ids, scale).backward(sum, padding);
  if (positions_adapter.exists()) TablePass(positions_adapter, ctx, batch, batch.positions, 1).backward(sum, -1);
}

int64_t Embedding::scratch_bytes(DType compute, int64_t rows, int64_t channels, const TensorShare& share) const {
  int64_t most = blocks.empty() ? 0 : Arena::aligned(4 * TensorSum::scratch_elements(share, rows * channels));
  for (const TableAdapter* adapter : {&table_adapter, &positions_adapter}) {
    if (!adapter->exists()) continue;
    const int64_t rank = adapter->rank, size = static_cast<int64_t>(size_of(compute));
    const int64_t u = Arena::aligned(rows * rank * 4) + Arena::aligned(rows * rank * size);
    const int64_t t = Arena::aligned(channels * rank * size) + Arena::aligned(channels * rank * 4);
    most = std::max(most, u + t + Arena::aligned(rows * channels * 4) + Arena::aligned(rows * channels * size));
  }
  return most;
}

int64_t Embedding::workspace_bytes(DType compute, int64_t rows, int64_t channels, bool training) const {
  int64_t most = 0;
  for (const TableAdapter* adapter : {&table_adapter, &positions_adapter}) {
    if (!adapter->exists()) continue;
    most = std::max(
        most, linear_workspace_bytes({adapter->rank, channels, false, compute, DType::f32, true, training}, rows));
  }
  return most;
}

}  // namespace llmtrain
