#include "layers/latent_projection.hpp"

#include "kernels/workspace.hpp"

namespace llmtrain {

namespace {

int64_t aligned_bytes(DType dtype, int64_t rows, int64_t columns) {
  return Arena::aligned(rows * columns * static_cast<int64_t>(size_of(dtype)));
}

/// Each head is a row.
Tensor by_heads(const Tensor& t, int64_t heads) {
  return Tensor(t.data, t.dtype, {t.dim(0) * heads, t.dim(1) / heads});
}

}  // namespace

int64_t LatentProjection::scratch_bytes(DType compute, int64_t rows) const {
  const auto of_latent = [&](const Linear& linear, int64_t rank) {
    return 2 * aligned_bytes(DType::f32, rows, rank) + 2 * aligned_bytes(compute, rows, rank) +
           linear.scratch_bytes(compute, compute, rows);
  };
  const int64_t expanded = aligned_bytes(compute, rows, heads.query_columns()) + aligned_bytes(compute, rows, keys.out);
  return expanded + std::max(of_latent(keys, key_rank), query_rank > 0 ? of_latent(query, query_rank) : 0);
}

/// Bytes of inputs(), of a block and of backward_latents().
int64_t LatentProjection::split_scratch_bytes(DType compute, int64_t rows) const {
  const int64_t inputs = aligned_bytes(compute, rows, query_rank) + aligned_bytes(compute, rows, key_rank);
  const int64_t expanded = aligned_bytes(compute, rows, query.out) + aligned_bytes(compute, rows, keys.out);
  const int64_t linears =
      std::max(query.scratch_bytes(compute, compute, rows), keys.scratch_bytes(compute, compute, rows));
  return inputs + expanded + linears + 3 * aligned_bytes(DType::f32, rows, std::max(query_rank, key_rank));
}

int64_t LatentProjection::workspace_bytes(DType compute, int64_t rows, bool training) const {
  int64_t bytes = keys.workspace_bytes(compute, compute, rows, training);
  if (query.weight.exists()) bytes = std::max(bytes, query.workspace_bytes(compute, compute, rows, training));
  return training ? std::max(bytes, row_sum_workspace_bytes(rows, 2 * std::max(query_rank, key_rank))) : bytes;
}

double LatentProjection::product_flops(bool input_gradient) const {
  return keys.product_flops(input_gradient) + query.product_flops(input_gradient);
}

void LatentProjection::cut(const Tensor& values, const Tensor& wide, Stream& stream) const {
  copy_columns(by_heads(values, heads.heads), 0, by_heads(wide, heads.heads), 0, heads.value, stream);
}

void LatentProjection::pad(const Tensor& wide, const Tensor& values, Stream& stream) const {
  fill_zero(wide.data, wide.bytes(), stream);
  copy_columns(by_heads(wide, heads.heads), 0, by_heads(values, heads.heads), 0, heads.value, stream);
}

/// Norms read fp32: wide gets the columns of low.
void LatentProjection::normalize(Context& ctx, const Tensor& normed, const Tensor& wide, const Tensor& low,
                                 const Latent& latent, bool again) {
  copy_columns(wide, 0, low, latent.first, latent.rank, ctx.stream);
  latent.norm.forward(ctx, normed, wide, latent.saved, again);
}

void LatentProjection::expand(Context& ctx, const Batch& batch, const Tensor& y, const Tensor& low,
                              const Latent& latent) {
  const int64_t n = low.dim(0);
  Arena::Frame frame(ctx.arena);
  const Tensor x = frame.take(DType::f32, {n, latent.rank}), normed = frame.take(low.dtype, {n, latent.rank});
  normalize(ctx, normed, x, low, latent, false);
  latent.linear.forward(ctx, batch, y, normed);
}

void LatentProjection::expand_backward(Context& ctx, const Batch& batch, const Tensor& dlow, const Tensor& dy,
                                       const Tensor& low, const Latent& latent) {
  const int64_t n = low.dim(0);
  Arena::Frame frame(ctx.arena);
  const Tensor x = frame.take(DType::f32, {n, latent.rank}), normed = frame.take(low.dtype, {n, latent.rank});
  const Tensor dx = frame.take(DType::f32, {n, latent.rank}), dnormed = frame.take(low.dtype, {n, latent.rank});
  normalize(ctx, normed, x, low, latent, true);
  latent.linear.backward(ctx, batch, dnormed, dy, normed);
  latent.norm.backward(ctx, dx, dnormed, x, latent.saved, false);
  copy_columns(dlow, latent.first, dx, 0, latent.rank, ctx.stream);
}

void LatentProjection::forward(Context& ctx, const Batch& batch, const Tensor& qkv, const LatentSaved& saved) const {
  const int64_t n = qkv.dim(0);
  const Tensor low = first_rows(saved.low, n);
  Arena::Frame frame(ctx.arena);
  const Tensor kv = frame.take(low.dtype, {n, keys.out});
  Tensor q = low;
  if (query_rank > 0) {
    q = frame.take(low.dtype, {n, query.out});
    expand(ctx, batch, q, low, query_latent(saved, n));
  }
  expand(ctx, batch, kv, low, key_latent(saved, n));
  latent_heads_forward(qkv, q, kv, low, heads, ctx.stream);
}

/// Parameters come in the reverse of their order.
void LatentProjection::backward(Context& ctx, const Batch& batch, const Tensor& dlow, const Tensor& dqkv,
                                const LatentSaved& saved) const {
  const int64_t n = dqkv.dim(0);
  const Tensor low = first_rows(saved.low, n);
  Arena::Frame frame(ctx.arena);
  const Tensor dkv = frame.take(low.dtype, {n, keys.out});
  const Tensor dq = query_rank > 0 ? frame.take(low.dtype, {n, query.out}) : dlow;
  latent_heads_backward(dq, dkv, dlow, dqkv, heads, ctx.stream);
  expand_backward(ctx, batch, dlow, dkv, low, key_latent(saved, n));
  if (query_rank > 0) expand_backward(ctx, batch, dlow, dq, low, query_latent(saved, n));
}

LatentInputs LatentProjection::inputs(Context& ctx, Arena::Frame& frame, const Tensor& x, const LatentSaved& saved,
                                      bool again) const {
  const int64_t n = x.dim(0);
  const Tensor low = first_rows(saved.low, n);
  const auto normed = [&](const Latent& latent) {
    const Tensor y = frame.take(low.dtype, {n, latent.rank});
    Arena::Frame inner(ctx.arena);
    normalize(ctx, y, inner.take(DType::f32, {n, latent.rank}), low, latent, again);
    return y;
  };
  return {query_rank > 0 ? normed(query_latent(saved, n)) : x, normed(key_latent(saved, n))};
}

void LatentProjection::forward_block(Context& ctx, const Batch& batch, const Tensor& qkv, const LatentInputs& inputs,
                                     const LatentSaved& saved) const {
  const int64_t n = qkv.dim(0);
  Arena::Frame frame(ctx.arena);
  const Tensor q = frame.take(qkv.dtype, {n, query.out}), kv = frame.take(qkv.dtype, {n, keys.out});
  query.forward(ctx, batch, q, inputs.query);
  keys.forward(ctx, batch, kv, inputs.key);
  latent_heads_forward(qkv, q, kv, first_rows(saved.low, n), heads, ctx.stream);
}

void LatentProjection::backward_block(Context& ctx, const Batch& batch, const Tensor& dlatents, const Tensor& dx,
                                      const Tensor& dqkv, const LatentInputs& inputs) const {
  const int64_t n = dqkv.dim(0);
  Arena::Frame frame(ctx.arena);
  const Tensor dq = frame.take(dqkv.dtype, {n, query.out}), dkv = frame.take(dqkv.dtype, {n, keys.out});
  latent_heads_backward(dq, dkv, dlatents, dqkv, heads, ctx.stream);
  const auto differentiate = [&](const Linear& linear, const Tensor& dy, const Tensor& input, int64_t first) {
    Arena::Frame inner(ctx.arena);
    const Tensor dinput = inner.take(DType::f32, {n, linear.in});
    linear.backward(ctx, batch, dinput, dy, input);
    copy_columns(dlatents, first, dinput, 0, linear.in, ctx.stream);
  };
  differentiate(keys, dkv, inputs.key, first_key_column());
  if (query_rank > 0) return differentiate(query, dq, inputs.query, 0);
  query.backward(ctx, batch, dx, dq, inputs.query);
}

void LatentProjection::backward_latents(Context& ctx, const Tensor& dlow, const Tensor& dlatents,
                                        const LatentSaved& saved) const {
  const int64_t n = dlow.dim(0), rotated = low_columns() - heads.rotated;
  const Tensor low = first_rows(saved.low, n);
  const auto differentiate = [&](const Latent& latent) {
    Arena::Frame frame(ctx.arena);
    const Tensor x = frame.take(DType::f32, {n, latent.rank}), dx = frame.take(DType::f32, {n, latent.rank});
    const Tensor dnormed = frame.take(DType::f32, {n, latent.rank});
    copy_columns(x, 0, low, latent.first, latent.rank, ctx.stream);
    copy_columns(dnormed, 0, dlatents, latent.first, latent.rank, ctx.stream);
    latent.norm.backward(ctx, dx, dnormed, x, latent.saved, false);
    copy_columns(dlow, latent.first, dx, 0, latent.rank, ctx.stream);
  };
  copy_columns(dlow, rotated, dlatents, rotated, heads.rotated, ctx.stream);
  differentiate(key_latent(saved, n));
  if (query_rank > 0) differentiate(query_latent(saved, n));
}

}  // namespace llmtrain
