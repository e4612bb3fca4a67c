#include "layers/attention.hpp"

#include <algorithm>

#include "kernels/attention_cached.hpp"
#include "kernels/attention_sinks.hpp"
#include "kernels/head_groups.hpp"
#include "kernels/key_copies.hpp"
#include "layers/kv_selection.hpp"

namespace llmtrain {

namespace {

/// Memory of saved rows, which some ranks share, as those of this pass.
Tensor rows_in(const Tensor& saved, int64_t rows, int64_t columns) {
  return Tensor(saved.data, saved.dtype, {rows, columns});
}

Tensor lse_of(const AttentionSaved& saved, const AttentionShape& shape, int64_t rows) {
  return Tensor(saved.lse.data, DType::f32, {shape.heads, rows});
}

/// The shape of either pass in a role: both must use one library.
AttentionShape shape_in(AttentionShape shape, ProductRole role) {
  if (role != ProductRole::training) shape.longest = 0;  // cuDNN selects a plan by the number of sequences
  return shape;
}

/// Attention of new tokens to a cache that keeps some of the keys of their texts.
void attend_kept(Context& ctx, const Batch& batch, const Tensor& out, const Tensor& lse, const Tensor& qkv,
                 const AttentionShape& shape, size_t cache) {
  const KvSelection& selection = *ctx.cache->selection;
  const KeptKeys kept = selection.of_layer(*ctx.cache, cache);
  Batch places = batch;
  places.positions = selection.counts.rows(0, batch.tokens);
  store_kept_keys(kept, places.positions, qkv, batch, shape, ctx.stream);
  attention_cached(out, lse, qkv, kept.cache, places, shape, ctx.role, ctx.stream);
  weigh_kept_keys(kept, places.positions, qkv, batch, shape, ctx.stream);
}

}  // namespace

void Attention::append_shared(std::vector<SharedParam>& shared) const {
  append_shared_before(shared);
  projection.append_shared(shared);
}

void Attention::append_shared_before(std::vector<SharedParam>& shared) const {
  for (const ParamRef& norm : {query_norm, key_norm}) {
    if (norm.is_trained() && !norms_whole_rows) shared.push_back({norm, shape.head_dim, 1});
  }
  qkv.append_shared(shared);
  if (!latent) return;
  latent->query.append_shared(shared);
  latent->keys.append_shared(shared);
}

int64_t Attention::scratch_bytes(DType compute, DType output, int64_t rows) const {
  const auto bytes = [&](int64_t columns) {
    return Arena::aligned(rows * columns * static_cast<int64_t>(size_of(compute)));
  };
  int64_t heads = Arena::aligned(attention_workspace_bytes(shape_of_rank(0), context * rows));
  if (context > 1) {
    heads = std::max(heads, HeadExchange::scratch_bytes(compute, rows, context, divided_columns()));
    heads += bytes(out_columns()) + bytes(divided_columns());
    if (sinks.exists()) {
      const int64_t numbers = HeadExchange::numbers_scratch_bytes(shape.heads / context, rows, context);
      heads = std::max(heads, Arena::aligned(shape.heads * rows * static_cast<int64_t>(sizeof(float))) + numbers);
    }
  }
  if (key_copies > 1) heads += bytes(divided_columns());
  int64_t own = bytes(out_columns()) + bytes(row_columns());
  if (grouped) own += bytes(row_columns());
  if (latent) {
    own += bytes(projection.in) + bytes(out_columns()) + bytes(qkv.out);
    heads = std::max(heads, latent->scratch_bytes(compute, rows));
  }
  return own +
         std::max({heads, qkv.scratch_bytes(compute, compute, rows), projection.scratch_bytes(compute, output, rows)});
}

HeadNormShape Attention::norm_shape() const {
  const int64_t blocks = norms_whole_rows && qkv.block ? qkv.block->blocks : 1;
  return {shape.heads, shape.kv_heads, shape.head_dim, norm_epsilon, norm_weight_offset, norms_whole_rows, blocks};
}

Dropout Attention::probability_dropout(const Context& ctx) const {
  return step_dropout(ctx, dropout, RandomPurpose::attention_dropout, static_cast<uint64_t>(layer));
}

void Attention::forward(Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x, const Rope& rope,
                        const AttentionSaved& saved) const {
  forward_heads(ctx, batch, x, rope, saved);
  projection.forward(ctx, batch, y, first_rows(saved.out, batch.tokens));
}

std::array<int64_t, 3> Attention::parts() const {
  const int64_t keys = shape.kv_heads * key_copies * shape.head_dim;
  return {shape.heads * shape.head_dim, keys, keys};
}

int64_t Attention::divided_columns() const {
  const std::array<int64_t, 3> columns = parts();
  return columns[0] + columns[1] + columns[2];
}

AttentionShape Attention::shape_of_rank(int64_t rank) const {
  AttentionShape own = shape;
  own.heads /= context;
  own.kv_heads = shape.kv_heads * key_copies / context;
  own.first_head += rank * own.heads;
  return own;
}

AttentionShape Attention::own_shape(const Context& ctx) const {
  const AttentionShape own = is_divided(ctx) ? shape_of_rank(ctx.rows->mesh().context_rank()) : shape;
  return shape_in(own, ctx.role);
}

void Attention::forward_heads(Context& ctx, const Batch& batch, const Tensor& x, const Rope& rope,
                              const AttentionSaved& saved) const {
  const int64_t n = batch.tokens;
  Arena::Frame frame(ctx.arena);
  const Tensor rows = take_rows(ctx, frame, x.dtype, n, saved);
  if (grouped) {
    const Tensor groups = frame.take(x.dtype, {n, row_columns()});
    qkv.forward(ctx, batch, groups, x);
    ungroup_heads(rows, groups, shape, ctx.stream);
  } else {
    qkv.forward(ctx, batch, latent ? first_rows(saved.latent.low, n) : rows, x);
  }
  if (latent) latent->forward(ctx, batch, rows, saved.latent);
  attend_to(ctx, batch, rows, rope, saved);
}

Tensor Attention::take_rows(const Context& ctx, Arena::Frame& frame, DType dtype, int64_t n,
                            const AttentionSaved& saved) const {
  return is_divided(ctx) ? frame.take(dtype, {n, row_columns()}) : rows_in(saved.qkv, n, row_columns());
}

void Attention::attend_to(Context& ctx, const Batch& batch, const Tensor& rows, const Rope& rope,
                          const AttentionSaved& saved, const Tensor& squares) const {
  const int64_t n = batch.tokens;
  Arena::Frame frame(ctx.arena);
  if (query_norm.exists()) {
    head_norm_forward({rows, first_rows(saved.raw, n), first_rows(saved.rstd, n), query_norm.weight(ctx),
                       key_norm.weight(ctx), squares},
                      norm_shape(), ctx.stream);
  }
  rope.apply(rows, batch, normed_heads(), shape.head_dim, false, ctx.stream);
  const Tensor out = latent ? frame.take(rows.dtype, {n, out_columns()}) : first_rows(saved.out, n);
  attend_to_rows(ctx, batch, out, rows, saved);
  if (latent) latent->cut(first_rows(saved.out, n), out, ctx.stream);
}

/// Attention of the rows of a pass, whatever its keys are.
void Attention::attend_to_rows(Context& ctx, const Batch& batch, const Tensor& out, const Tensor& rows,
                               const AttentionSaved& saved) const {
  if (is_divided(ctx)) return attend_divided(ctx, out, rows, saved);
  const bool selects = ctx.cache != nullptr && ctx.cache->selection != nullptr;
  const bool decodes = ctx.cache != nullptr && ctx.cache->decoding;
  const Tensor lse = lse_of(saved, shape, batch.tokens);
  if (selects && decodes) {
    attend_kept(ctx, batch, out, lse, rows, shape, cache);
    return add_sinks(ctx, out, saved);
  }
  if (ctx.cache != nullptr && !selects) {
    cache_keys_values(ctx.cache->layers[cache], rows, batch, shape, ctx.stream);
  }
  if (decodes) {
    attention_cached(out, lse, rows, ctx.cache->layers[cache], batch, shape, ctx.role, ctx.stream);
  } else {
    attend(ctx, batch, out, rows, saved);
  }
  add_sinks(ctx, out, saved);
  if (!selects) return;
  keep_prompt_keys(ctx.cache->selection->of_layer(*ctx.cache, cache), rows, lse, batch, shape, ctx.stream);
}

void Attention::add_sinks(Context& ctx, const Tensor& out, const AttentionSaved& saved) const {
  if (!sinks.exists()) return;
  const AttentionShape own = own_shape(ctx);
  const Tensor logits = sinks.weight(ctx).rows(own.first_head - shape.first_head, own.heads);
  add_attention_sinks(out, lse_of(saved, own, out.dim(0)), logits, ctx.stream);
}

/// dout and out: this rank's rows of all heads.
void Attention::backward_sinks(Context& ctx, const Tensor& dout, const Tensor& out, const AttentionSaved& saved) const {
  if (!sinks.is_trained()) return;
  const int64_t n = out.dim(0);
  Arena::Frame frame(ctx.arena);
  Tensor lse = lse_of(saved, shape, n);
  if (HeadExchange* exchange = is_divided(ctx) ? ctx.heads() : nullptr) {
    lse = frame.take(DType::f32, {shape.heads, n});
    exchange->numbers_to_rows(lse, lse_of(saved, own_shape(ctx), ctx.rows->whole().tokens), ctx.arena, ctx.stream);
  }
  ctx.each_row_block(n, [&](int64_t first, int64_t count) {
    attention_sinks_backward({sinks.gradient(ctx), dout.rows(first, count), out.rows(first, count), lse, first,
                              sinks.weight(ctx), sinks.accumulates(ctx)},
                             ctx.stream);
  });
}

void Attention::attend(Context& ctx, const Batch& batch, const Tensor& out, const Tensor& qkv_rows,
                       const AttentionSaved& saved) const {
  const AttentionShape own = own_shape(ctx);
  Arena::Frame frame(ctx.arena);
  const Tensor workspace = frame.take(DType::u8, {attention_workspace_bytes(own, batch.tokens)});
  attention_forward(out, lse_of(saved, own, batch.tokens), qkv_rows, batch, own, probability_dropout(ctx), workspace,
                    ctx.stream);
}

/// Attention of a batch that may be divided among ranks by its heads: rows of all heads to rows of all heads.
void Attention::attend_divided(Context& ctx, const Tensor& out, const Tensor& rows, const AttentionSaved& saved) const {
  const Batch& whole = ctx.rows->whole();
  HeadExchange* exchange = ctx.heads();
  Arena::Frame frame(ctx.arena);
  const Tensor heads = first_rows(saved.qkv, whole.tokens);
  Tensor copied = rows;
  if (key_copies > 1) {
    copied = exchange != nullptr ? frame.take(rows.dtype, {rows.dim(0), divided_columns()}) : heads;
    copy_key_heads(copied, rows, shape, key_copies, ctx.stream);
  }
  const Tensor heads_out = exchange != nullptr ? first_rows(saved.heads_out, whole.tokens) : out;
  if (exchange != nullptr) exchange->to_heads(heads, copied, parts(), ctx.arena, ctx.stream);
  attend(ctx, whole, heads_out, heads, saved);
  add_sinks(ctx, heads_out, saved);
  if (exchange == nullptr) return;
  const int64_t columns = out_columns();
  exchange->to_rows(out, heads_out, {&columns, 1}, ctx.arena, ctx.stream);
}

void Attention::attend_divided_backward(Context& ctx, const Tensor& dqkv, const Tensor& dout, const Tensor& out,
                                        const AttentionSaved& saved) const {
  const Batch& whole = ctx.rows->whole();
  HeadExchange* exchange = ctx.heads();
  Arena::Frame frame(ctx.arena);
  const Tensor copied = key_copies == 1 ? dqkv : frame.take(dqkv.dtype, {dqkv.dim(0), divided_columns()});
  if (exchange == nullptr) {
    attend_backward(ctx, whole, copied, dout, out, saved);
  } else {
    const int64_t columns = out_columns();
    const Tensor heads_dout = frame.take(dout.dtype, {whole.tokens, columns / context});
    const Tensor heads_dqkv = frame.take(dqkv.dtype, {whole.tokens, divided_columns() / context});
    exchange->to_heads(heads_dout, dout, {&columns, 1}, ctx.arena, ctx.stream);
    attend_backward(ctx, whole, heads_dqkv, heads_dout, first_rows(saved.heads_out, whole.tokens), saved);
    exchange->to_rows(copied, heads_dqkv, parts(), ctx.arena, ctx.stream);
  }
  if (key_copies > 1) add_key_heads(dqkv, copied, shape, key_copies, ctx.stream);
}

void Attention::attend_backward(Context& ctx, const Batch& batch, const Tensor& dqkv, const Tensor& dout,
                                const Tensor& out, const AttentionSaved& saved) const {
  const int64_t n = batch.tokens;
  const AttentionShape own = own_shape(ctx);
  Arena::Frame frame(ctx.arena);
  const Tensor workspace = frame.take(DType::u8, {attention_workspace_bytes(own, n)});
  attention_backward({dqkv, dout, out, lse_of(saved, own, n), rows_in(saved.qkv, n, dqkv.dim(1))}, batch, own,
                     probability_dropout(ctx), workspace, ctx.stream);
}

void Attention::backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x,
                         const Rope& rope, const AttentionSaved& saved) const {
  const int64_t n = batch.tokens;
  Arena::Frame frame(ctx.arena);
  const bool goes_on = heads_gradient(!dx.empty());
  const Tensor dqkv = goes_on ? frame.take(dy.dtype, {n, row_columns()}) : Tensor();
  backward_heads(ctx, batch, dqkv, dy, rope, saved);
  if (!goes_on) return;
  backward_norms(ctx, dqkv, saved);
  if (grouped) {
    const Tensor dgroups = frame.take(dy.dtype, {n, row_columns()});
    group_heads(dgroups, dqkv, shape, ctx.stream);
    return qkv.backward(ctx, batch, dx, dgroups, x);
  }
  if (!latent) return qkv.backward(ctx, batch, dx, dqkv, x);
  const Tensor dlow = frame.take(dy.dtype, {n, qkv.out});
  latent->backward(ctx, batch, dlow, dqkv, saved.latent);
  qkv.backward(ctx, batch, dx, dlow, x);
}

void Attention::backward_heads(Context& ctx, const Batch& batch, const Tensor& dqkv, const Tensor& dy, const Rope& rope,
                               const AttentionSaved& saved) const {
  const int64_t n = batch.tokens;
  Arena::Frame frame(ctx.arena);
  Tensor dout = frame.take(dy.dtype, {n, projection.in}), out = first_rows(saved.out, n);
  projection.backward(ctx, batch, dqkv.empty() ? Tensor() : dout, dy, out);
  if (dqkv.empty()) return;
  if (latent) {
    const Tensor values = out, dvalues = dout;
    out = frame.take(dy.dtype, {n, out_columns()});
    dout = frame.take(dy.dtype, {n, out_columns()});
    latent->pad(out, values, ctx.stream);
    latent->pad(dout, dvalues, ctx.stream);
  }
  backward_sinks(ctx, dout, out, saved);
  if (is_divided(ctx)) {
    attend_divided_backward(ctx, dqkv, dout, out, saved);
  } else {
    attend_backward(ctx, batch, dqkv, dout, out, saved);
  }
  rope.apply(dqkv, batch, normed_heads(), shape.head_dim, true, ctx.stream);
}

HeadNormBackward Attention::norm_backward(const Context& ctx, const Tensor& dqkv, const AttentionSaved& saved) const {
  const int64_t n = dqkv.dim(0);
  return {
      dqkv, {}, {}, first_rows(saved.raw, n), first_rows(saved.rstd, n), query_norm.weight(ctx), key_norm.weight(ctx)};
}

void Attention::backward_norms(Context& ctx, const Tensor& dqkv, const AttentionSaved& saved,
                               const Tensor& products) const {
  if (!query_norm.exists()) return;
  ctx.each_row_block(dqkv.dim(0), [&](int64_t first, int64_t count) {
    HeadNormBackward rows = norm_backward(ctx, dqkv, saved);
    rows.dquery_weight = query_norm.gradient(ctx);
    rows.dkey_weight = key_norm.gradient(ctx);
    rows.accumulate = (query_norm.is_trained() ? query_norm : key_norm).accumulates(ctx);
    for (Tensor* of_all : {&rows.dqkv, &rows.raw, &rows.rstd}) *of_all = of_all->rows(first, count);
    if (!products.empty()) rows.products = products.rows(first, count);
    head_norm_backward(rows, norm_shape(), ctx.stream);
  });
}

}  // namespace llmtrain
