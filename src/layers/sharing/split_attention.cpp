#include "layers/sharing/split_attention.hpp"

#include <algorithm>

#include "kernels/elementwise.hpp"
#include "kernels/head_norm.hpp"

namespace llmtrain {

namespace {

constexpr int64_t normed_vectors = 2;  ///< of a row: all queries and all keys

int64_t bytes_of(DType dtype, int64_t rows, int64_t columns) {
  return Arena::aligned(rows * columns * static_cast<int64_t>(size_of(dtype)));
}

}  // namespace

std::vector<SharedParam> SplitAttention::shared_before() const {
  std::vector<SharedParam> params;
  front().append_shared_before(params);
  return params;
}

std::vector<SharedParam> SplitAttention::shared_after() const {
  std::vector<SharedParam> params;
  front().projection.append_shared(params);
  return params;
}

int64_t SplitAttention::scratch_bytes(DType compute, DType output, int64_t rows) const {
  if (!has_phases()) return SplitLayer::scratch_bytes(compute, output, rows);
  const Attention& block = front();
  const int64_t own = std::ssize(blocks), channels = sum.out;
  int64_t bytes =
      block.scratch_bytes(compute, DType::f32, rows) + WholeRowNorms::scratch_bytes(*share, block.last(), compute);
  bytes += BlockSum::scratch_bytes(*share, rows * channels) + own * bytes_of(compute, rows, block.row_columns());
  bytes += SharedGradients::scratch_bytes(*share, shared_before(), groups) +
           SharedGradients::scratch_bytes(*share, shared_after(), groups);
  if (splits_norms()) bytes += BlockSum::scratch_bytes(*share, rows * normed_vectors);
  if (!splits_latent()) return bytes;
  return bytes + block.latent->split_scratch_bytes(compute, rows) + BlockSum::scratch_bytes(*share, rows * low.out) +
         bytes_of(compute, rows, low.out) + bytes_of(DType::f32, rows, channels) +
         low.scratch_bytes(compute, compute, rows);
}

int64_t SplitAttention::workspace_bytes(DType compute, DType output, int64_t rows, bool training) const {
  if (!splits_latent()) return SplitLayer::workspace_bytes(compute, output, rows, training);
  return std::max(low.workspace_bytes(compute, compute, rows, training),
                  front().last().workspace_bytes(compute, DType::f32, rows, training));
}

/// Queries, keys and values of block i, before norms and rope. `inputs`: of latent heads, else the layer's input as a
/// query's.
void SplitAttention::project_rows(Context& ctx, const Batch& batch, const Tensor& rows, const LatentInputs& inputs,
                                  size_t i, const Saved& saved) const {
  const Attention& block = blocks[i];
  if (block.latent) return block.latent->forward_block(ctx, batch, rows, inputs, saved.front().latent);
  block.qkv.forward(ctx, batch, rows, inputs.query);
}

void SplitAttention::forward_heads(Context& ctx, const Batch& batch, const Tensor& x, const Rope& rope,
                                   const Saved& saved) const {
  if (!has_phases()) {
    for (size_t i = 0; i < blocks.size(); ++i) blocks[i].forward_heads(ctx, batch, x, rope, saved[i]);
    return;
  }
  const int64_t n = batch.tokens;
  Arena::Frame frame(ctx.arena);
  LatentInputs inputs{x, {}};
  if (splits_latent()) {
    low.forward(ctx, batch, first_rows(saved.front().latent.low, n), x);
    inputs = front().latent->inputs(ctx, frame, x, saved.front().latent, false);
  }
  std::optional<BlockSum> squares;
  if (splits_norms()) squares.emplace(*ctx.tensor, frame, n, normed_vectors);
  std::vector<Tensor> rows;
  for (size_t i = 0; i < blocks.size(); ++i) {
    rows.push_back(blocks[i].take_rows(ctx, frame, x.dtype, n, saved[i]));
    project_rows(ctx, batch, rows.back(), inputs, i, saved);
    if (!squares) continue;
    head_norm_squares(squares->next(), rows.back(), blocks[i].norm_shape(), ctx.stream);
    squares->add(ctx.stream);
  }
  const Tensor sums = squares ? squares->finish(ctx.stream) : Tensor();
  for (size_t i = 0; i < blocks.size(); ++i) blocks[i].attend_to(ctx, batch, rows[i], rope, saved[i], sums);
}

/// The gradients of the last matrices, and, if there are dqkv, of the rows of all blocks before rope. `products`,
/// unless it is null, gets what norms over all heads need.
void SplitAttention::backward_heads(Context& ctx, const Batch& batch, std::span<const Tensor> dqkv, const Tensor& dy,
                                    const Rope& rope, const Saved& saved, BlockSum* products) const {
  Arena::Frame frame(ctx.arena);
  SharedGradients shared(ctx, frame, shared_after(), groups);
  for (size_t i = 0; i < blocks.size(); ++i) {
    shared.begin_block();
    blocks[i].backward_heads(ctx, batch, dqkv.empty() ? Tensor() : dqkv[i], dy, rope, saved[i]);
    shared.end_block();
    if (products == nullptr) continue;
    head_norm_products(products->next(), blocks[i].norm_backward(ctx, dqkv[i], saved[i]), blocks[i].norm_shape(),
                       ctx.stream);
    products->add(ctx.stream);
  }
  sum.backward_bias(ctx, dy);
  shared.finish();
}

void SplitAttention::backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x,
                              const Saved& saved, const Rope& rope) const {
  if (!has_phases()) return SplitLayer::backward(ctx, batch, dx, dy, x, saved, rope);
  const int64_t n = batch.tokens;
  Arena::Frame frame(ctx.arena);
  const WholeRowNorms norms(ctx, frame, last_blocks());
  std::vector<Tensor> dqkv;
  const bool goes_on = heads_gradient(!dx.empty());
  for (const Attention& block : blocks) {
    if (goes_on) dqkv.push_back(frame.take(dy.dtype, {n, block.row_columns()}));
  }
  std::optional<BlockSum> products;
  if (goes_on && splits_norms()) products.emplace(*ctx.tensor, frame, n, normed_vectors);
  backward_heads(ctx, batch, dqkv, dy, rope, saved, products ? &*products : nullptr);
  if (!goes_on) return;
  const Tensor of_all = products ? products->finish(ctx.stream) : Tensor();

  LatentInputs inputs;
  if (splits_latent()) inputs = front().latent->inputs(ctx, frame, x, saved.front().latent, true);
  SharedGradients shared(ctx, frame, shared_before(), groups);
  std::optional<BlockSum> terms, latents;
  if (!dx.empty() && sums_input()) terms.emplace(*ctx.tensor, frame, n, dx.dim(1));
  if (splits_latent()) latents.emplace(*ctx.tensor, frame, n, low.out);
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Attention& block = blocks[i];
    const Tensor term = terms ? terms->next() : Tensor();
    shared.begin_block();
    block.backward_norms(ctx, dqkv[i], saved[i], of_all);
    if (latents) {
      block.latent->backward_block(ctx, batch, latents->next(), term, dqkv[i], inputs);
      latents->add(ctx.stream);
    } else {
      block.qkv.backward(ctx, batch, term, dqkv[i], x);
    }
    shared.end_block();
    if (terms) terms->add(ctx.stream);
  }
  shared.finish();
  const Tensor dterms = terms ? terms->finish(ctx.stream) : Tensor();
  if (latents) return backward_low(ctx, batch, dx, x, latents->finish(ctx.stream), dterms, saved);
  if (terms) cast(dx, dterms, ctx.stream);
}

/// dlatents fp32 [N, rows of low]: gradients of what blocks read; dterms fp32 [N, C]: the gradient of x that blocks
/// give, if they do.
void SplitAttention::backward_low(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& x,
                                  const Tensor& dlatents, const Tensor& dterms, const Saved& saved) const {
  Arena::Frame frame(ctx.arena);
  const Tensor dlow = frame.take(x.dtype, {x.dim(0), low.out});
  front().latent->backward_latents(ctx, dlow, dlatents, saved.front().latent);
  if (dterms.empty()) return low.backward(ctx, batch, dx, dlow, x);
  const Tensor wide = frame.take(DType::f32, {dterms.dim(0), dterms.dim(1)});
  low.backward(ctx, batch, wide, dlow, x);
  add_into(dterms, wide, false, ctx.stream);
  cast(dx, dterms, ctx.stream);
}

}  // namespace llmtrain
