#include "layers/block.hpp"

#include <algorithm>

#include "kernels/adapter.hpp"
#include "kernels/elementwise.hpp"
#include "kernels/workspace.hpp"

namespace llmtrain {

int64_t Block::scratch_bytes(DType compute, int64_t rows, Recompute level) const {
  const int64_t residual = Arena::aligned(rows * channels * 4);
  const int64_t branches =
      (parallel ? 3 : 2) * Arena::aligned(rows * channels * static_cast<int64_t>(size_of(compute)));
  const DType branch = branch_type(compute);
  const int64_t parts =
      std::max(attention.scratch_bytes(compute, branch, rows),
               experts ? experts->scratch_bytes(compute, rows) : mlp.scratch_bytes(compute, branch, rows));
  return dropped_bytes<BlockSaved>(*this, compute, rows, level) + branches + (pre_norm ? 0 : residual) +
         (sandwich ? std::max(parts, residual) : parts);  // used in turn by the norms and by the branches
}

int64_t Block::workspace_bytes(DType compute, int64_t rows, bool training) const {
  const DType branch = branch_type(compute);
  int64_t bytes = std::max(attention.workspace_bytes(compute, branch, rows, training),
                           experts ? experts->workspace_bytes(compute, rows, training)
                                   : mlp.workspace_bytes(compute, branch, rows, training));
  if (attention.front().latent) {
    bytes = std::max(bytes, attention.front().latent->workspace_bytes(compute, rows, training));
  }
  // Gradients of a norm's weight and bias, or of the query and key norms of all heads.
  const Attention& heads = attention.front();
  const int64_t norms = 2 * std::max(channels, heads.query_norm.exists() ? heads.norm_shape().query_width() : 0);
  return training ? std::max(bytes, row_sum_workspace_bytes(rows, norms)) : bytes;
}

Dropout Block::residual_dropout(const Context& ctx, int branch) const {
  return step_dropout(ctx, dropout, RandomPurpose::residual_dropout,
                      2 * static_cast<uint64_t>(layer) + static_cast<uint64_t>(branch));
}

void Block::forward(Context& ctx, const Batch& batch, const Tensor& output, const Rope& rope, const BlockSaved& saved,
                    BlockSaved& all, const JoinedNorms& joined) const {
  Arena::Frame frame(ctx.arena);
  allocate_dropped(all, frame, *this, saved, compute_type(ctx), ctx.planned_rows(batch));
  run_forward(ctx, batch, rope, {saved, all, output, joined});
}

void Block::run_forward(Context& ctx, const Batch& batch, const Rope& rope, const ForwardPass& pass) const {
  if (!pre_norm) return forward_post_norm(ctx, batch, rope, pass);
  if (parallel) return forward_parallel(ctx, batch, rope, pass);
  const BlockSaved &kept = pass.kept, &all = pass.all;
  const int64_t n = batch.tokens;
  const Tensor input = first_rows(all.input, n), middle = first_rows(all.middle, n);
  const Tensor attention_input = pass.attention_input(n), mlp_input = first_rows(all.mlp_input, n);
  Arena::Frame frame(ctx.arena);
  const Tensor delta = frame.take(attention_input.dtype, {n, channels});
  const Tensor attention_delta = all.delta.empty() ? delta : first_rows(all.delta, n);

  if (pass.computes_attention_input()) norm1.forward(ctx, attention_input, input, all.norm1, pass.again());
  if (pass.computes(kept.attention.front().qkv))
    attention.forward_heads(ctx, batch, attention_input, rope, all.attention);
  if (pass.computes(kept.middle)) {
    if (pass.computes(kept.delta)) project_attention(ctx, batch, attention_delta, all);
    norm2.forward_sum(ctx, mlp_input, middle, all.norm2, input, {attention_delta, batch, residual_dropout(ctx, 0)},
                      pass.again());
  } else if (pass.computes(kept.mlp_input)) {
    norm2.forward(ctx, mlp_input, middle, all.norm2, pass.again());
  }
  forward_hidden(ctx, batch, mlp_input, pass);
  if (!pass.again() || (sandwich && kept.mlp_output.empty())) project_mlp(ctx, batch, delta, mlp_input, pass);
  if (!pass.again()) add_last_branch(ctx, batch, pass, middle, delta);
}

void Block::forward_hidden(Context& ctx, const Batch& batch, const Tensor& x, const ForwardPass& pass) const {
  if (experts) return experts->forward_hidden(ctx, batch, x, pass.all.experts, pass.kept.experts, pass.again());
  for (size_t i = 0; i < mlp.blocks.size(); ++i) {
    mlp.blocks[i].forward_hidden(ctx, batch, x, pass.all.mlp[i], pass.kept.mlp[i], pass.again());
  }
}

/// delta [N, C]: output of a branch, or its gradient.
void Block::scale_branch(const Tensor& delta, Stream& stream) const {
  if (branch_scale != 1) set_block(delta, {}, delta, branch_scale, stream);
}

/// Computes the output: in, the sum before, and delta [N, C], which is that of the last branch.
void Block::add_last_branch(Context& ctx, const Batch& batch, const ForwardPass& pass, const Tensor& in,
                            const Tensor& delta) const {
  const JoinedNorms& joined = pass.joined;
  const ResidualBranch branch{delta, batch, residual_dropout(ctx, 1)};
  if (joined.next == nullptr) return residual_add(pass.output, in, delta, batch, branch.dropout, ctx.stream);
  if (joined.next->exists()) joined.next->acquire(ctx.params);
  joined.next->forward_sum(ctx, first_rows(joined.normed, batch.tokens), pass.output, *joined.next_saved, in, branch);
  if (joined.next->exists()) joined.next->release(ctx.params);
}

/// delta [N, C]: output of the attention branch, before dropout.
void Block::project_attention(Context& ctx, const Batch& batch, const Tensor& delta, const BlockSaved& all) const {
  const int64_t n = delta.dim(0);
  const Tensor output = sandwich ? first_rows(all.attention_output, n) : delta;
  attention.project(ctx, batch, output, all.attention);
  if (sandwich) post_attention.forward(ctx, delta, output, all.post_attention);
  scale_branch(delta, ctx.stream);
}

void Block::project_mlp(Context& ctx, const Batch& batch, const Tensor& delta, const Tensor& x,
                        const ForwardPass& pass) const {
  const int64_t n = delta.dim(0);
  const BlockSaved& all = pass.all;
  const Tensor output = sandwich ? first_rows(all.mlp_output, n) : delta;
  if (experts) {
    experts->project(ctx, batch, output, x, all.experts, pass.kept.experts);
  } else {
    mlp.project(ctx, batch, output, all.mlp);
  }
  if (sandwich) post_mlp.forward(ctx, delta, output, all.post_mlp);
  scale_branch(delta, ctx.stream);
}

/// ddelta: gradient of the norm's output on entry, of its input on return.
void Block::backward_sandwich(Context& ctx, const Norm& norm, const Tensor& ddelta, const Tensor& output,
                              const NormSaved& saved) const {
  const int64_t n = ddelta.dim(0);
  Arena::Frame frame(ctx.arena);
  const Tensor doutput = frame.take(DType::f32, {n, channels});
  norm.backward(ctx, doutput, ddelta, first_rows(output, n), saved, false);
  cast(ddelta, doutput, ctx.stream);
}

Block::Gradients Block::gradients(bool input) const {
  const Norm& between = pre_norm ? norm2 : norm1;
  Gradients wanted{};
  wanted.attention_input = input || (pre_norm && norm1.is_trained());
  wanted.heads = attention.heads_gradient(wanted.attention_input);
  wanted.attention_output = wanted.heads || attention.trains_last() || post_attention.is_trained();
  wanted.mlp_input = parallel ? input || (shares_norm() ? norm1 : norm2).is_trained()
                              : wanted.attention_output || between.is_trained();
  wanted.hidden = experts ? experts->hidden_gradient(wanted.mlp_input) : mlp.front().hidden_gradient(wanted.mlp_input);
  return wanted;
}

double Block::product_flops(bool input_gradient) const {
  const Gradients wanted = gradients(input_gradient);
  const auto of_attention = [&](const Attention& a) {
    const double flops = a.qkv.product_flops(wanted.attention_input) + a.projection.product_flops(wanted.heads);
    return flops + (a.latent ? a.latent->product_flops(wanted.heads) : 0);
  };
  const auto of_mlp = [&](const Mlp& m) {
    return m.up.product_flops(wanted.mlp_input) + m.down.product_flops(wanted.hidden);
  };
  return attention.flops(of_attention) + attention.low.product_flops(wanted.attention_input) +
         (experts ? experts->product_flops(wanted.mlp_input) : mlp.flops(of_mlp));
}

void Block::backward(Context& ctx, const Batch& batch, const Tensor& dx, const Rope& rope, const BlockSaved& kept,
                     BlockSaved& saved, bool input_gradient) const {
  const int64_t n = batch.tokens;
  Arena::Frame frame(ctx.arena);
  allocate_dropped(saved, frame, *this, kept, compute_type(ctx), ctx.planned_rows(batch));
  run_forward(ctx, batch, rope, {kept, saved, Tensor()});
  const Gradients wanted = gradients(input_gradient);
  if (!pre_norm) return backward_post_norm(ctx, batch, dx, rope, {kept, saved, Tensor()}, wanted);
  if (parallel) return backward_parallel(ctx, batch, dx, rope, {kept, saved, Tensor()}, wanted);
  const Tensor attention_input = first_rows(saved.attention_input, n), mlp_input = first_rows(saved.mlp_input, n);
  const Tensor room = frame.take(attention_input.dtype, {n, channels});
  const Tensor dbranch = frame.take(attention_input.dtype, {n, channels});

  // Without an operation between a branch and the residual stream, the branch's gradient is the stream's.
  const bool separate = room.dtype != dx.dtype || residual_dropout(ctx, 0).active() || sandwich || branch_scale != 1;
  const Tensor& ddelta = separate ? room : dx;
  if (separate) residual_add_backward(ddelta, dx, batch, residual_dropout(ctx, 1), ctx.stream);
  scale_branch(ddelta, ctx.stream);
  if (sandwich) backward_sandwich(ctx, post_mlp, ddelta, saved.mlp_output, saved.post_mlp);
  backward_mlp(ctx, batch, wanted.mlp_input ? dbranch : Tensor(), ddelta, mlp_input, saved, kept);
  if (!wanted.mlp_input) return;
  const Tensor middle = first_rows(saved.middle, n);
  if (separate) {
    norm2.backward_sum(ctx, dx, dbranch, middle, saved.norm2, true, {ddelta, batch, residual_dropout(ctx, 0)});
    scale_branch(ddelta, ctx.stream);
  } else {
    norm2.backward(ctx, dx, dbranch, middle, saved.norm2, true);
  }
  if (!wanted.attention_output) return;
  if (sandwich) backward_sandwich(ctx, post_attention, ddelta, saved.attention_output, saved.post_attention);
  attention.backward(ctx, batch, wanted.attention_input ? dbranch : Tensor(), ddelta, attention_input, saved.attention,
                     rope);
  if (!wanted.attention_input) return;
  norm1.backward(ctx, dx, dbranch, first_rows(saved.input, n), saved.norm1, true);
}

void Block::backward_mlp(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x,
                         const BlockSaved& saved, const BlockSaved& kept) const {
  if (experts) return experts->backward(ctx, batch, dx, dy, x, saved.experts, kept.experts);
  mlp.backward(ctx, batch, dx, dy, x, saved.mlp);
}

void Block::forward_parallel(Context& ctx, const Batch& batch, const Rope& rope, const ForwardPass& pass) const {
  const BlockSaved &kept = pass.kept, &all = pass.all;
  const int64_t n = batch.tokens;
  const Tensor input = first_rows(all.input, n), attention_input = pass.attention_input(n);
  const Tensor mlp_input = shares_norm() ? attention_input : first_rows(all.mlp_input, n);
  Arena::Frame frame(ctx.arena);
  const Tensor delta = frame.take(attention_input.dtype, {n, channels});

  if (pass.computes_attention_input()) norm1.forward(ctx, attention_input, input, all.norm1, pass.again());
  if (pass.computes(kept.attention.front().qkv)) {
    attention.forward_heads(ctx, batch, attention_input, rope, all.attention);
  }
  if (!pass.again()) {
    project_attention(ctx, batch, delta, all);
    residual_add(pass.output, input, delta, batch, residual_dropout(ctx, 0), ctx.stream);
  }
  if (!shares_norm() && pass.computes(kept.mlp_input)) norm2.forward(ctx, mlp_input, input, all.norm2, pass.again());
  forward_hidden(ctx, batch, mlp_input, pass);
  if (pass.again()) return;
  project_mlp(ctx, batch, delta, mlp_input, pass);
  add_last_branch(ctx, batch, pass, pass.output, delta);
}

void Block::backward_parallel(Context& ctx, const Batch& batch, const Tensor& dx, const Rope& rope,
                              const ForwardPass& pass, const Gradients& wanted) const {
  const BlockSaved &kept = pass.kept, &saved = pass.all;
  const int64_t n = batch.tokens;
  const Tensor input = first_rows(saved.input, n), attention_input = first_rows(saved.attention_input, n);
  const Tensor mlp_input = shares_norm() ? attention_input : first_rows(saved.mlp_input, n);
  Arena::Frame frame(ctx.arena);
  const Tensor ddelta = frame.take(attention_input.dtype, {n, channels});
  const Tensor dattention = frame.take(attention_input.dtype, {n, channels});
  const Tensor dmlp = frame.take(attention_input.dtype, {n, channels});

  residual_add_backward(ddelta, dx, batch, residual_dropout(ctx, 1), ctx.stream);
  scale_branch(ddelta, ctx.stream);
  backward_mlp(ctx, batch, wanted.mlp_input ? dmlp : Tensor(), ddelta, mlp_input, saved, kept);
  if (wanted.attention_output) {
    residual_add_backward(ddelta, dx, batch, residual_dropout(ctx, 0), ctx.stream);
    scale_branch(ddelta, ctx.stream);
    attention.backward(ctx, batch, wanted.attention_input ? dattention : Tensor(), ddelta, attention_input,
                       saved.attention, rope);
  }
  if (!wanted.attention_input && !wanted.mlp_input) return;
  if (shares_norm()) {
    set_block(dattention, {}, dmlp, 1, ctx.stream, true);
  } else if (wanted.mlp_input) {
    norm2.backward(ctx, dx, dmlp, input, saved.norm2, true);
  }
  if (wanted.attention_input) norm1.backward(ctx, dx, dattention, input, saved.norm1, true);
}

void Block::forward_post_norm(Context& ctx, const Batch& batch, const Rope& rope, const ForwardPass& pass) const {
  const BlockSaved &kept = pass.kept, &all = pass.all;
  const int64_t n = batch.tokens;
  const Tensor input = first_rows(all.input, n), middle = first_rows(all.middle, n), sum = first_rows(all.sum, n);
  const Tensor attention_input = first_rows(all.attention_input, n), mlp_input = first_rows(all.mlp_input, n);
  Arena::Frame frame(ctx.arena);
  const Tensor normed = frame.take(DType::f32, {n, channels});
  const Tensor delta = frame.take(attention_input.dtype, {n, channels});

  if (pass.computes(kept.attention_input)) cast(attention_input, input, ctx.stream);
  if (pass.computes(kept.attention.front().qkv))
    attention.forward_heads(ctx, batch, attention_input, rope, all.attention);
  if (pass.computes(kept.middle)) {
    project_attention(ctx, batch, delta, all);
    residual_add(middle, input, delta, batch, residual_dropout(ctx, 0), ctx.stream);
  }
  if (pass.computes(kept.mlp_input)) {
    norm1.forward(ctx, normed, middle, all.norm1, pass.again());
    cast(mlp_input, normed, ctx.stream);
  }
  forward_hidden(ctx, batch, mlp_input, pass);
  if (pass.computes(kept.sum)) {
    project_mlp(ctx, batch, delta, mlp_input, pass);
    residual_add(sum, normed, delta, batch, residual_dropout(ctx, 1), ctx.stream);
  }
  if (!pass.again()) norm2.forward(ctx, pass.output, sum, all.norm2);
}

void Block::backward_post_norm(Context& ctx, const Batch& batch, const Tensor& dx, const Rope& rope,
                               const ForwardPass& pass, const Gradients& wanted) const {
  const BlockSaved &kept = pass.kept, &saved = pass.all;
  const int64_t n = batch.tokens;
  const Tensor attention_input = first_rows(saved.attention_input, n), mlp_input = first_rows(saved.mlp_input, n);
  Arena::Frame frame(ctx.arena);
  const Tensor dsum = frame.take(DType::f32, {n, channels});
  const Tensor ddelta = frame.take(attention_input.dtype, {n, channels});
  const Tensor dbranch = frame.take(attention_input.dtype, {n, channels});

  norm2.backward_sum(ctx, dsum, dx, first_rows(saved.sum, n), saved.norm2, false,
                     {ddelta, batch, residual_dropout(ctx, 1)});
  scale_branch(ddelta, ctx.stream);
  backward_mlp(ctx, batch, wanted.mlp_input ? dbranch : Tensor(), ddelta, mlp_input, saved, kept);
  if (!wanted.mlp_input) return;
  residual_add(dsum, dsum, dbranch, batch, {}, ctx.stream);
  norm1.backward_sum(ctx, dx, dsum, first_rows(saved.middle, n), saved.norm1, false,
                     {ddelta, batch, residual_dropout(ctx, 0)});
  scale_branch(ddelta, ctx.stream);
  if (!wanted.attention_output) return;
  attention.backward(ctx, batch, wanted.attention_input ? dbranch : Tensor(), ddelta, attention_input, saved.attention,
                     rope);
  if (wanted.attention_input) residual_add(dx, dx, dbranch, batch, {}, ctx.stream);
}

}  // namespace llmtrain
