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

int64_t LatentProjection::workspace_bytes(DType compute, int64_t rows, bool training) const {
  int64_t bytes = keys.workspace_bytes(compute, compute, rows, training);
  if (query_rank > 0) bytes = std::max(bytes, query.workspace_bytes(compute, compute, rows, training));
  return training ? std::max(bytes, row_sum_workspace_bytes(rows, 2 * std::max(query_rank, key_rank))) : bytes;
}

double LatentProjection::product_flops(bool input_gradient) const {
  return keys.product_flops(input_gradient) + (query_rank > 0 ? query.product_flops(input_gradient) : 0);
}

void LatentProjection::cut(const Tensor& values, const Tensor& wide, Stream& stream) const {
  copy_columns(by_heads(values, heads.heads), 0, by_heads(wide, heads.heads), 0, heads.value, stream);
}

void LatentProjection::pad(const Tensor& wide, const Tensor& values, Stream& stream) const {
  fill_zero(wide.data, wide.bytes(), stream);
  copy_columns(by_heads(wide, heads.heads), 0, by_heads(values, heads.heads), 0, heads.value, stream);
}

/// Norms read fp32.
void LatentProjection::expand(Context& ctx, const Batch& batch, const Tensor& y, const Tensor& low,
                              const Latent& latent) {
  const int64_t n = low.dim(0);
  Arena::Frame frame(ctx.arena);
  const Tensor x = frame.take(DType::f32, {n, latent.rank}), normed = frame.take(low.dtype, {n, latent.rank});
  copy_columns(x, 0, low, latent.first, latent.rank, ctx.stream);
  latent.norm.forward(ctx, normed, x, latent.saved);
  latent.linear.forward(ctx, batch, y, normed);
}

void LatentProjection::expand_backward(Context& ctx, const Batch& batch, const Tensor& dlow, const Tensor& dy,
                                       const Tensor& low, const Latent& latent) {
  const int64_t n = low.dim(0);
  Arena::Frame frame(ctx.arena);
  const Tensor x = frame.take(DType::f32, {n, latent.rank}), normed = frame.take(low.dtype, {n, latent.rank});
  const Tensor dx = frame.take(DType::f32, {n, latent.rank}), dnormed = frame.take(low.dtype, {n, latent.rank});
  copy_columns(x, 0, low, latent.first, latent.rank, ctx.stream);
  latent.norm.forward(ctx, normed, x, latent.saved, true);
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

}  // namespace llmtrain
