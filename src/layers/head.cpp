#include "layers/head.hpp"

#include "kernels/adapter.hpp"
#include "kernels/workspace.hpp"
#include "layers/logit_loss.hpp"

namespace llmtrain {

namespace {

constexpr int64_t row_granule = 128;

/// Number of rows that fit: all, or a multiple of the granule, at least one.
int64_t fitting_rows(int64_t rows, int64_t bytes, int64_t bytes_of_row) {
  return std::min(rows, std::max(bytes / bytes_of_row / row_granule * row_granule, row_granule));
}

/// False for plain statistics, which cost nothing more.
bool is_tempered(const Context& ctx, const Tensor& kept) { return ctx.temperature != 1 || !kept.empty(); }

}  // namespace

int64_t Head::block_rows(int64_t rows) const { return fitting_rows(rows, logits_bytes, budget_columns() * 4); }

int64_t Head::group_rows(DType compute, int64_t rows) const {
  return fitting_rows(rows, gradient_bytes, budget_columns() * static_cast<int64_t>(size_of(compute)));
}

int64_t Head::scratch_bytes(DType compute, int64_t rows) const {
  const int64_t logits = Arena::aligned(block_rows(rows) * columns() * 4);
  const int64_t gradients =
      Arena::aligned(group_rows(compute, rows) * columns() * static_cast<int64_t>(size_of(compute)));
  const int64_t inputs = group_rows(compute, rows) * linear.in * static_cast<int64_t>(size_of(compute));
  const int64_t adapters = std::max(
      linear.scratch_bytes(compute, DType::f32, block_rows(rows)),
      linear.scratch_bytes(compute, compute, group_rows(compute, rows)) + (drops(true) ? Arena::aligned(inputs) : 0));
  // fp32 logits are overwritten by their gradients
  return adapters + (compute == DType::f32 ? std::max(logits, gradients) : logits + gradients);
}

int64_t Head::workspace_bytes(DType compute, int64_t rows, bool training) const {
  const int64_t block = block_rows(rows), group = group_rows(compute, rows);
  if (!linear.adapters.empty()) {
    return std::max(linear.workspace_bytes(compute, DType::f32, block, training),
                    training ? linear.workspace_bytes(compute, compute, group, true) : 0);
  }
  const LinearPass forward{linear.in, linear.out, false, compute, DType::f32, true, false, 0, linear.quantized};
  LinearPass backward{linear.in, linear.out, false, compute, DType::f32, false, true, 0, linear.quantized};
  backward.wide_gradient = split_columns > 0;
  return std::max(linear_workspace_bytes(forward, block), training ? linear_workspace_bytes(backward, group) : 0);
}

void Head::logits(Context& ctx, const Batch& batch, const Tensor& out, const Tensor& x) const {
  linear.forward(ctx, batch, out, x);
  if (scale != 1) set_block(out, {}, out, scale, ctx.stream);
  if (softcap > 0) softcap_logits(out, softcap, ctx.stream);
}

void Head::tempered_logits(Context& ctx, const Batch& batch, const Tensor& out, const Tensor& x) const {
  logits(ctx, batch, out, x);
  if (is_tempered(ctx, batch.kept)) temper_logits(out, ctx.temperature, batch.kept, tokens(), ctx.stream);
}

void Head::logit_gradients(Context& ctx, const Batch& batch, const Tensor& dlogits, const Tensor& logits,
                           const TokenStatistics& statistics, const TokenCotangents& cotangents) const {
  logprob_backward(dlogits, logits, batch.targets, statistics, cotangents, tokens(), softcap / ctx.temperature,
                   ctx.stream);
  scale_gradients(ctx, batch, dlogits);
}

void Head::scale_gradients(Context& ctx, const Batch& batch, const Tensor& dlogits) const {
  if (is_tempered(ctx, batch.kept)) temper_gradient(dlogits, ctx.temperature, batch.kept, tokens(), ctx.stream);
  if (scale != 1) set_block(dlogits, {}, dlogits, scale, ctx.stream);
}

void Head::forward(Context& ctx, const Batch& batch, const Tensor& x, const TokenStatistics& statistics) const {
  const int64_t n = x.dim(0), block = block_rows(n);
  Arena::Frame frame(ctx.arena);
  const Tensor buffer = frame.take(DType::f32, {block, columns()});
  each_run(n, block, [&](int64_t begin, int64_t count) {
    const Tensor rows = buffer.rows(0, count);
    const Batch own = batch.rows(begin, count);
    tempered_logits(ctx, own, rows, x.rows(begin, count));
    const TokenStatistics own_statistics = statistics.rows(begin, count);
    logprob_forward(own_statistics, rows, own.targets, vocabulary, ctx.stream);
    if (!own_statistics.mean_logit.empty()) mean_logits(own_statistics.mean_logit, rows, vocabulary, ctx.stream);
  });
}

/// Adds to the gradients of parameters where the context says that earlier rows have written them.
void Head::backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dlogits, const Tensor& x) const {
  if (ctx.adapters && !linear.adapters.empty()) {
    Arena::Frame frame(ctx.arena);
    Tensor input = x;
    if (drops(ctx.training) && dx.data == x.data) {  // x is read again after dx is written
      input = frame.take(x.dtype, {x.dim(0), x.dim(1)});
      copy_on_device(input.data, x.data, x.bytes(), ctx.stream);
    }
    return linear.backward(ctx, batch, dx, dlogits, input);
  }
  if (linear.weight.is_trained()) {
    linear_backward_weight(linear.weight.gradient(ctx), dlogits, x, ctx.accumulate(), ctx.stream);
  }
  if (!dx.empty()) linear_backward_input(dx, dlogits, linear.weight.matrix(ctx), false, ctx.stream);
}

void Head::forward_backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& x,
                            const TokenStatistics& statistics, const TokenCotangents& cotangents) const {
  const int64_t n = x.dim(0), group = group_rows(x.dtype, n), block = block_rows(group);
  Arena::Frame frame(ctx.arena);
  const Tensor gradients = frame.take(x.dtype, {group, columns()});
  const Tensor buffer = x.dtype == DType::f32 ? Tensor() : frame.take(DType::f32, {block, columns()});
  each_group(ctx, n, group, [&](int64_t first, int64_t grouped) {
    const Tensor dlogits = gradients.rows(0, grouped), xs = x.rows(first, grouped);
    each_run(grouped, block, [&](int64_t begin, int64_t count) {
      const Tensor drows = dlogits.rows(begin, count), rows = buffer.empty() ? drows : buffer.rows(0, count);
      const TokenStatistics stats = statistics.rows(first + begin, count);
      const Batch own = batch.rows(first + begin, count);
      tempered_logits(ctx, own, rows, x.rows(first + begin, count));
      const TokenCotangents own_cotangents = cotangents.rows(first + begin, count);
      if (ctx.logit_loss == nullptr) {
        logprob_forward_backward(drows, rows, own.targets, stats, own_cotangents, vocabulary, softcap / ctx.temperature,
                                 ctx.stream);
        scale_gradients(ctx, own, drows);
      } else {
        logprob_forward(stats, rows, own.targets, vocabulary, ctx.stream);
        ctx.logit_loss->differentiate({own, first + begin, rows, drows, stats, own_cotangents, vocabulary, softcap},
                                      ctx.stream);
        if (scale != 1) set_block(drows, {}, drows, scale, ctx.stream);
      }
    });
    backward(ctx, batch.rows(first, grouped), dx.empty() ? dx : dx.rows(first, grouped), dlogits, xs);
  });
}

}  // namespace llmtrain
