#include "layers/block.hpp"

#include <algorithm>

#include "kernels/elementwise.hpp"

namespace llmtrain {

void Block::plan_saved(Arena& arena, BlockSaved& saved, DType compute, int64_t rows, const std::string& name) const {
  const auto residual = [&](Tensor& t, const char* what) {
    arena.add(t, MemoryCategory::activations, name + what, DType::f32, {rows, channels});
  };
  const auto branch = [&](Tensor& t, const char* what) {
    arena.add(t, MemoryCategory::activations, name + what, compute, {rows, channels});
  };
  residual(saved.input, ".input");
  branch(saved.attention_input, ".attention_input");
  attention.plan_saved(arena, saved.attention, compute, rows, name + ".attention");
  residual(saved.middle, ".middle");
  branch(saved.mlp_input, ".mlp_input");
  mlp.plan_saved(arena, saved.mlp, compute, rows, name + ".mlp");
  if (!pre_norm) residual(saved.sum, ".sum");
  saved.norm1.plan(arena, norm1.kind, rows, name + ".norm1");
  saved.norm2.plan(arena, norm2.kind, rows, name + ".norm2");
  if (!sandwich) return;
  residual(saved.attention_output, ".attention_output");
  residual(saved.mlp_output, ".mlp_output");
  saved.post_attention.plan(arena, post_attention.kind, rows, name + ".post_attention");
  saved.post_mlp.plan(arena, post_mlp.kind, rows, name + ".post_mlp");
}

int64_t Block::scratch_bytes(DType compute, int64_t rows) const {
  const int64_t residual = pre_norm && !sandwich ? 0 : Arena::aligned(rows * channels * 4);
  const int64_t branches = 2 * Arena::aligned(rows * channels * static_cast<int64_t>(size_of(compute)));
  return residual + branches + std::max(attention.scratch_bytes(compute, rows), mlp.scratch_bytes(compute, rows));
}

Dropout Block::residual_dropout(const Context& ctx, int branch) const {
  if (!ctx.training || dropout == 0) return {};
  return {static_cast<float>(dropout),
          random_key(ctx.seed, RandomPurpose::residual_dropout, static_cast<uint64_t>(ctx.step),
                     2 * static_cast<uint64_t>(layer) + static_cast<uint64_t>(branch))};
}

void Block::forward(Context& ctx, const Batch& batch, const Tensor& output, const Rope& rope,
                    const BlockSaved& saved) const {
  if (!pre_norm) return forward_post_norm(ctx, batch, output, rope, saved);
  const int64_t n = batch.tokens;
  const Tensor input = first_rows(saved.input, n), middle = first_rows(saved.middle, n);
  const Tensor attention_input = first_rows(saved.attention_input, n), mlp_input = first_rows(saved.mlp_input, n);
  Arena::Frame frame(ctx.arena);
  const Tensor delta = frame.take(attention_input.dtype, {n, channels});

  norm1.forward(ctx, attention_input, input, saved.norm1);
  forward_attention(ctx, batch, delta, rope, saved);
  residual_add(middle, input, delta, batch, residual_dropout(ctx, 0), ctx.stream);
  norm2.forward(ctx, mlp_input, middle, saved.norm2);
  forward_mlp(ctx, batch, delta, saved);
  residual_add(output, middle, delta, batch, residual_dropout(ctx, 1), ctx.stream);
}

void Block::forward_attention(Context& ctx, const Batch& batch, const Tensor& delta, const Rope& rope,
                              const BlockSaved& saved) const {
  const Tensor x = first_rows(saved.attention_input, batch.tokens);
  if (!sandwich) return attention.forward(ctx, batch, delta, x, rope, saved.attention);
  const Tensor output = first_rows(saved.attention_output, batch.tokens);
  attention.forward(ctx, batch, output, x, rope, saved.attention);
  post_attention.forward(ctx, delta, output, saved.post_attention);
}

void Block::forward_mlp(Context& ctx, const Batch& batch, const Tensor& delta, const BlockSaved& saved) const {
  const Tensor x = first_rows(saved.mlp_input, batch.tokens);
  if (!sandwich) return mlp.forward(ctx, delta, x, saved.mlp);
  const Tensor output = first_rows(saved.mlp_output, batch.tokens);
  mlp.forward(ctx, output, x, saved.mlp);
  post_mlp.forward(ctx, delta, output, saved.post_mlp);
}

/// ddelta: gradient behind the norm on entry, before it on return.
void Block::backward_sandwich(Context& ctx, const Norm& norm, const Tensor& ddelta, const Tensor& output,
                              const NormSaved& saved) const {
  const int64_t n = ddelta.dim(0);
  Arena::Frame frame(ctx.arena);
  const Tensor doutput = frame.take(DType::f32, {n, channels});
  norm.backward(ctx, doutput, ddelta, first_rows(output, n), saved, false);
  cast(ddelta, doutput, ctx.stream);
}

void Block::backward(Context& ctx, const Batch& batch, const Tensor& dx, const Rope& rope,
                     const BlockSaved& saved) const {
  if (!pre_norm) return backward_post_norm(ctx, batch, dx, rope, saved);
  const int64_t n = batch.tokens;
  const Tensor attention_input = first_rows(saved.attention_input, n), mlp_input = first_rows(saved.mlp_input, n);
  Arena::Frame frame(ctx.arena);
  const Tensor ddelta = frame.take(attention_input.dtype, {n, channels});
  const Tensor dbranch = frame.take(attention_input.dtype, {n, channels});

  residual_add_backward(ddelta, dx, batch, residual_dropout(ctx, 1), ctx.stream);
  if (sandwich) backward_sandwich(ctx, post_mlp, ddelta, saved.mlp_output, saved.post_mlp);
  mlp.backward(ctx, dbranch, ddelta, mlp_input, saved.mlp);
  norm2.backward(ctx, dx, dbranch, first_rows(saved.middle, n), saved.norm2, true);
  residual_add_backward(ddelta, dx, batch, residual_dropout(ctx, 0), ctx.stream);
  if (sandwich) backward_sandwich(ctx, post_attention, ddelta, saved.attention_output, saved.post_attention);
  attention.backward(ctx, batch, dbranch, ddelta, attention_input, rope, saved.attention);
  norm1.backward(ctx, dx, dbranch, first_rows(saved.input, n), saved.norm1, true);
}

void Block::forward_post_norm(Context& ctx, const Batch& batch, const Tensor& output, const Rope& rope,
                              const BlockSaved& saved) const {
  const int64_t n = batch.tokens;
  const Tensor input = first_rows(saved.input, n), middle = first_rows(saved.middle, n);
  const Tensor sum = first_rows(saved.sum, n);
  const Tensor attention_input = first_rows(saved.attention_input, n), mlp_input = first_rows(saved.mlp_input, n);
  Arena::Frame frame(ctx.arena);
  const Tensor normed = frame.take(DType::f32, {n, channels});
  const Tensor delta = frame.take(attention_input.dtype, {n, channels});

  cast(attention_input, input, ctx.stream);
  attention.forward(ctx, batch, delta, attention_input, rope, saved.attention);
  residual_add(middle, input, delta, batch, residual_dropout(ctx, 0), ctx.stream);
  norm1.forward(ctx, normed, middle, saved.norm1);
  cast(mlp_input, normed, ctx.stream);
  mlp.forward(ctx, delta, mlp_input, saved.mlp);
  residual_add(sum, normed, delta, batch, residual_dropout(ctx, 1), ctx.stream);
  norm2.forward(ctx, output, sum, saved.norm2);
}

void Block::backward_post_norm(Context& ctx, const Batch& batch, const Tensor& dx, const Rope& rope,
                               const BlockSaved& saved) const {
  const int64_t n = batch.tokens;
  const Tensor attention_input = first_rows(saved.attention_input, n), mlp_input = first_rows(saved.mlp_input, n);
  Arena::Frame frame(ctx.arena);
  const Tensor dsum = frame.take(DType::f32, {n, channels});
  const Tensor ddelta = frame.take(attention_input.dtype, {n, channels});
  const Tensor dbranch = frame.take(attention_input.dtype, {n, channels});

  norm2.backward(ctx, dsum, dx, first_rows(saved.sum, n), saved.norm2, false);
  residual_add_backward(ddelta, dsum, batch, residual_dropout(ctx, 1), ctx.stream);
  mlp.backward(ctx, dbranch, ddelta, mlp_input, saved.mlp);
  residual_add(dsum, dsum, dbranch, batch, {}, ctx.stream);
  norm1.backward(ctx, dx, dsum, first_rows(saved.middle, n), saved.norm1, false);
  residual_add_backward(ddelta, dx, batch, residual_dropout(ctx, 0), ctx.stream);
  attention.backward(ctx, batch, dbranch, ddelta, attention_input, rope, saved.attention);
  residual_add(dx, dx, dbranch, batch, {}, ctx.stream);
}

}  // namespace llmtrain
