#include "layers/attention.hpp"

#include <algorithm>

#include "kernels/attention_cached.hpp"
#include "layers/kv_selection.hpp"

namespace llmtrain {

namespace {

Tensor lse_of(const AttentionSaved& saved, const AttentionShape& shape, int64_t rows) {
  return Tensor(saved.lse.data, DType::f32, {shape.heads, rows});
}

/// The shape of either pass in a role: both must use one library.
AttentionShape shape_in(AttentionShape shape, ProductRole role) {
  if (role != ProductRole::training) shape.longest = 0;  // cuDNN selects a plan by the number of sequences
  return shape;
}

/// Attention of new tokens to a cache that keeps some of the keys of their texts.
void attend_kept(Context& ctx, const Batch& batch, const Tensor& out, const Tensor& qkv, const AttentionShape& shape,
                 int layer) {
  const KvSelection& selection = *ctx.cache->selection;
  const KeptKeys kept = selection.of_layer(*ctx.cache, layer);
  Batch places = batch;
  places.positions = selection.counts.rows(0, batch.tokens);
  store_kept_keys(kept, places.positions, qkv, batch, shape, ctx.stream);
  attention_cached(out, qkv, kept.cache, places, shape, ctx.role, ctx.stream);
  weigh_kept_keys(kept, places.positions, qkv, batch, shape, ctx.stream);
}

}  // namespace

int64_t Attention::scratch_bytes(DType compute, DType output, int64_t rows) const {
  const int64_t element = static_cast<int64_t>(size_of(compute));
  return Arena::aligned(attention_workspace_bytes(shape, rows)) + Arena::aligned(rows * projection.in * element) +
         Arena::aligned(rows * qkv.out * element) +
         std::max(qkv.scratch_bytes(compute, compute, rows), projection.scratch_bytes(compute, output, rows));
}

HeadNormShape Attention::norm_shape() const {
  return {shape.heads, shape.kv_heads, shape.head_dim, norm_epsilon, norm_weight_offset};
}

Dropout Attention::probability_dropout(const Context& ctx) const {
  return step_dropout(ctx, dropout, RandomPurpose::attention_dropout, static_cast<uint64_t>(layer));
}

void Attention::forward(Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x, const Rope& rope,
                        const AttentionSaved& saved) const {
  forward_heads(ctx, batch, x, rope, saved);
  projection.forward(ctx, batch, y, first_rows(saved.out, batch.tokens));
}

void Attention::forward_heads(Context& ctx, const Batch& batch, const Tensor& x, const Rope& rope,
                              const AttentionSaved& saved) const {
  const int64_t n = batch.tokens;
  const Tensor rows = first_rows(saved.qkv, n);
  qkv.forward(ctx, batch, rows, x);
  if (query_norm.exists()) {
    head_norm_forward(
        {rows, first_rows(saved.raw, n), first_rows(saved.rstd, n), query_norm.weight(ctx), key_norm.weight(ctx)},
        norm_shape(), ctx.stream);
  }
  rope.apply(rows, batch, normed_heads(), shape.head_dim, false, ctx.stream);
  const bool selects = ctx.cache != nullptr && ctx.cache->selection != nullptr;
  const bool decodes = ctx.cache != nullptr && ctx.cache->decoding;
  if (selects && decodes) return attend_kept(ctx, batch, first_rows(saved.out, n), rows, shape, layer);
  if (ctx.cache != nullptr && !selects) {
    cache_keys_values(ctx.cache->layers[static_cast<size_t>(layer)], rows, batch, shape, ctx.stream);
  }
  if (decodes) {
    attention_cached(first_rows(saved.out, n), rows, ctx.cache->layers[static_cast<size_t>(layer)], batch, shape,
                     ctx.role, ctx.stream);
  } else {
    const AttentionShape own = shape_in(shape, ctx.role);
    Arena::Frame frame(ctx.arena);
    const Tensor workspace = frame.take(DType::u8, {attention_workspace_bytes(own, n)});
    attention_forward(first_rows(saved.out, n), lse_of(saved, shape, n), rows, batch, own, probability_dropout(ctx),
                      workspace, ctx.stream);
  }
  if (!selects) return;
  keep_prompt_keys(ctx.cache->selection->of_layer(*ctx.cache, layer), rows, lse_of(saved, shape, n), batch, shape,
                   ctx.stream);
}

void Attention::backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x,
                         const Rope& rope, const AttentionSaved& saved) const {
  const int64_t n = batch.tokens;
  Arena::Frame frame(ctx.arena);
  const Tensor dout = frame.take(dy.dtype, {n, projection.in});
  const Tensor dqkv = frame.take(dy.dtype, {n, qkv.out});
  const AttentionShape own = shape_in(shape, ctx.role);
  const Tensor workspace = frame.take(DType::u8, {attention_workspace_bytes(own, n)});
  const Tensor out = first_rows(saved.out, n);
  const bool goes_on = heads_gradient(!dx.empty());
  projection.backward(ctx, batch, goes_on ? dout : Tensor(), dy, out);
  if (!goes_on) return;
  attention_backward({dqkv, dout, out, lse_of(saved, shape, n), first_rows(saved.qkv, n)}, batch, own,
                     probability_dropout(ctx), workspace, ctx.stream);
  rope.apply(dqkv, batch, normed_heads(), shape.head_dim, true, ctx.stream);
  if (query_norm.exists()) {
    ctx.each_group(n, [&](int64_t first, int64_t count) {
      head_norm_backward({dqkv.rows(first, count), query_norm.gradient(ctx), key_norm.gradient(ctx),
                          saved.raw.rows(first, count), saved.rstd.rows(first, count), query_norm.weight(ctx),
                          key_norm.weight(ctx), ctx.params.accumulate()},
                         norm_shape(), ctx.stream);
    });
  }
  qkv.backward(ctx, batch, dx, dqkv, x);
}

}  // namespace llmtrain
