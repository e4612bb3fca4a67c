#include "layers/head.hpp"

#include <algorithm>

#include "kernels/matmul.hpp"

namespace llmtrain {

namespace {

constexpr int64_t row_granule = 128;

TokenStatistics block_of(const TokenStatistics& s, int64_t begin, int64_t count) {
  const auto cut = [&](const Tensor& t) { return t.empty() ? t : t.rows(begin, count); };
  return {cut(s.logp), cut(s.lse), cut(s.entropy), cut(s.argmax)};
}

}  // namespace

int64_t Head::block_rows(int64_t rows) const {
  const int64_t fitting = logits_bytes / (rows_of_table * 4) / row_granule * row_granule;
  return std::min(rows, std::max(fitting, row_granule));
}

int64_t Head::scratch_bytes(DType compute, int64_t rows) const {
  const int64_t elements = block_rows(rows) * rows_of_table;
  return Arena::aligned(elements * 4) + (compute == DType::f32 ? 0 : Arena::aligned(elements * 2));
}

void Head::logits(Context& ctx, const Tensor& out, const Tensor& x) const {
  linear_forward(out, x, weight.weight(ctx), Tensor(), ctx.stream);
  if (softcap > 0) softcap_logits(out, softcap, ctx.stream);
}

void Head::forward(Context& ctx, const Tensor& x, const Tensor& targets, const TokenStatistics& statistics) const {
  const int64_t n = x.dim(0), block = block_rows(n);
  Arena::Frame frame(ctx.arena);
  const Tensor buffer = frame.take(DType::f32, {block, rows_of_table});
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t count = std::min(block, n - begin);
    const Tensor rows = buffer.rows(0, count);
    logits(ctx, rows, x.rows(begin, count));
    logprob_forward(block_of(statistics, begin, count), rows, targets.rows(begin, count), vocabulary, ctx.stream);
  }
}

void Head::forward_backward(Context& ctx, const Tensor& dx, const Tensor& x, const Tensor& targets,
                            const TokenStatistics& statistics, const TokenCotangents& cotangents) const {
  const int64_t n = x.dim(0), block = block_rows(n);
  Arena::Frame frame(ctx.arena);
  const Tensor buffer = frame.take(DType::f32, {block, rows_of_table});
  const Tensor gradients = x.dtype == DType::f32 ? buffer : frame.take(x.dtype, {block, rows_of_table});
  for (int64_t begin = 0; begin < n; begin += block) {
    const int64_t count = std::min(block, n - begin);
    const Tensor rows = buffer.rows(0, count), drows = gradients.rows(0, count);
    const Tensor xs = x.rows(begin, count), ts = targets.rows(begin, count);
    const TokenStatistics stats = block_of(statistics, begin, count);
    const auto cut = [&](const Tensor& t) { return t.empty() ? t : t.rows(begin, count); };
    logits(ctx, rows, xs);
    logprob_forward(stats, rows, ts, vocabulary, ctx.stream);
    logprob_backward(drows, rows, ts, stats, {cut(cotangents.logp), cut(cotangents.lse), cut(cotangents.entropy)},
                     vocabulary, softcap, ctx.stream);
    linear_backward_weight(weight.gradient(ctx), drows, xs, ctx.params.accumulate() || begin > 0, ctx.stream);
    linear_backward_input(dx.rows(begin, count), drows, weight.weight(ctx), false, ctx.stream);
  }
}

}  // namespace llmtrain
