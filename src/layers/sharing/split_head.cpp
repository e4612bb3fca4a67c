#include "layers/sharing/split_head.hpp"

#include "kernels/adapter.hpp"
#include "kernels/elementwise.hpp"

namespace llmtrain {

namespace {

Tensor cut_rows(const Tensor& t, int64_t begin, int64_t count) { return t.empty() ? t : t.rows(begin, count); }

}  // namespace

double SplitHead::product_flops(bool input_gradient) const {
  const double own = front().product_flops(input_gradient);
  return share ? own * static_cast<double>(rows) / static_cast<double>(front().out) : own;
}

std::vector<SharedParam> SplitHead::shared_params() const {
  std::vector<SharedParam> params;
  front().append_shared(params);
  return params;
}

int64_t SplitHead::scratch_bytes(DType compute, int64_t tokens) const {
  const Head& head = blocks.front();
  if (!share) return head.scratch_bytes(compute, tokens);
  const auto count = static_cast<int64_t>(blocks.size());
  const int64_t widest = rows_of_block(rows, share->blocks), block = head.block_rows(tokens);
  const int64_t gathered = Arena::aligned(share->blocks * block * widest * 4) +
                           front().scratch_bytes(compute, DType::f32, block);  // logits of generation
  const int64_t group = head.group_rows(compute, tokens);
  return std::max(gathered, count * head.scratch_bytes(compute, tokens) + Arena::aligned(parts_bytes(block)) +
                                BlockSum::scratch_bytes(*share, group * front().in) +
                                SharedGradients::scratch_bytes(*share, shared_params(), 1));
}

int64_t SplitHead::workspace_bytes(DType compute, int64_t tokens, bool training) const {
  return blocks.front().workspace_bytes(compute, tokens, training);
}

/// Fills the logits of this rank's blocks, tempered, and the statistics, from the parts of all.
void SplitHead::score_rows(Context& ctx, const Batch& batch, const Tensor& x, const std::vector<Tensor>& logits,
                           const Tensor& parts, const TokenStatistics& statistics) const {
  const int64_t bytes = batch.tokens * static_cast<int64_t>(sizeof(LogprobPart));
  const Tensor all(parts.data, DType::u8, {share->blocks, bytes});
  for (size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].tempered_logits(ctx, batch, logits[i], x);
    const Tensor own = all.rows(share->first + static_cast<int64_t>(i), 1);
    logprob_parts(own, logits[i], batch.targets, blocks[i].tokens(), ctx.stream);
  }
  ctx.tensor->gather(all, ctx.stream);
  add_logprob_parts(statistics, all, batch.targets, vocabulary, ctx.stream);
}

void SplitHead::forward(Context& ctx, const Batch& batch, const Tensor& x, const TokenStatistics& statistics) const {
  if (!share) return blocks.front().forward(ctx, batch, x, statistics);
  const int64_t n = x.dim(0), block = blocks.front().block_rows(n);
  Arena::Frame frame(ctx.arena);
  const Tensor parts = frame.take(DType::u8, {parts_bytes(block)});
  std::vector<Tensor> buffers, logits(blocks.size());
  for (const Head& head : blocks) buffers.push_back(frame.take(DType::f32, {block, head.columns()}));
  Head::each_run(n, block, [&](int64_t begin, int64_t count) {
    for (size_t i = 0; i < blocks.size(); ++i) logits[i] = buffers[i].rows(0, count);
    score_rows(ctx, batch.rows(begin, count), x.rows(begin, count), logits, parts, statistics.rows(begin, count));
  });
}

/// Adds to the gradients of parameters where the context says that earlier rows have written them.
void SplitHead::backward(Context& ctx, const Batch& batch, const Tensor& dx, const std::vector<Tensor>& dlogits,
                         const Tensor& x) const {
  Arena::Frame frame(ctx.arena);
  SharedGradients shared(ctx, frame, shared_params(), 1);
  std::optional<BlockSum> terms;
  if (!dx.empty()) terms.emplace(*ctx.tensor, frame, x.dim(0), x.dim(1));
  for (size_t i = 0; i < blocks.size(); ++i) {
    shared.begin_block();
    blocks[i].backward(ctx, batch, terms ? terms->next() : Tensor(), dlogits[i], x);
    shared.end_block();
    if (terms) terms->add(ctx.stream);
  }
  shared.finish();
  if (terms) cast(dx, terms->finish(ctx.stream), ctx.stream);
}

void SplitHead::forward_backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& x,
                                 const TokenStatistics& statistics, const TokenCotangents& cotangents) const {
  if (!share) return blocks.front().forward_backward(ctx, batch, dx, x, statistics, cotangents);
  LLMTRAIN_CHECK(ctx.logit_loss == nullptr, "a loss of whole distributions needs all logits of a row");
  const Head& head = blocks.front();
  const int64_t n = x.dim(0), group = head.group_rows(x.dtype, n), block = head.block_rows(group);
  const bool in_place = x.dtype == DType::f32;
  Arena::Frame frame(ctx.arena);
  const Tensor parts = frame.take(DType::u8, {parts_bytes(block)});
  std::vector<Tensor> gradients, buffers, dlogits(blocks.size()), drows(blocks.size()), logits(blocks.size());
  for (const Head& own : blocks) {
    gradients.push_back(frame.take(x.dtype, {group, own.columns()}));
    buffers.push_back(in_place ? Tensor() : frame.take(DType::f32, {block, own.columns()}));
  }
  Head::each_group(ctx, n, group, [&](int64_t first, int64_t grouped) {
    for (size_t i = 0; i < blocks.size(); ++i) dlogits[i] = gradients[i].rows(0, grouped);
    Head::each_run(grouped, block, [&](int64_t begin, int64_t count) {
      const int64_t at = first + begin;
      for (size_t i = 0; i < blocks.size(); ++i) {
        drows[i] = dlogits[i].rows(begin, count);
        logits[i] = in_place ? drows[i] : buffers[i].rows(0, count);
      }
      const Batch own = batch.rows(at, count);
      const TokenStatistics stats = statistics.rows(at, count);
      score_rows(ctx, own, x.rows(at, count), logits, parts, stats);
      for (size_t i = 0; i < blocks.size(); ++i) {
        blocks[i].logit_gradients(ctx, own, drows[i], logits[i], stats, cotangents.rows(at, count));
      }
    });
    backward(ctx, batch.rows(first, grouped), cut_rows(dx, first, grouped), dlogits, x.rows(first, grouped));
  });
}

void SplitHead::logits(Context& ctx, const Tensor& out, const Tensor& x) const {
  if (!share) return blocks.front().logits(ctx, out, x);
  const int64_t n = x.dim(0), block = blocks.front().block_rows(n), widest = rows_of_block(rows, share->blocks);
  Arena::Frame frame(ctx.arena);
  const Tensor all = frame.take(DType::f32, {share->blocks, block * widest});
  Head::each_run(n, block, [&](int64_t begin, int64_t count) {
    const auto logits_of = [&](int64_t index) {
      return Tensor(all.rows(index, 1).data, DType::f32, {count, std::min(widest, rows - index * widest)});
    };
    for (size_t i = 0; i < blocks.size(); ++i) {
      blocks[i].logits(ctx, logits_of(share->first + static_cast<int64_t>(i)), x.rows(begin, count));
    }
    ctx.tensor->gather(all, ctx.stream);
    for (int64_t index = 0; index < share->blocks; ++index) {
      set_block(out.rows(begin, count), {0, index * widest}, logits_of(index), 1, ctx.stream);
    }
  });
}

}  // namespace llmtrain
