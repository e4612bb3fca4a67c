#include "layers/embedding.hpp"

#include "kernels/elementwise.hpp"
#include "kernels/embedding.hpp"

namespace llmtrain {

namespace {

Dropout embedding_dropout(const Context& ctx, double probability) {
  if (!ctx.training || probability == 0) return {};
  return {static_cast<float>(probability),
          random_key(ctx.seed, RandomPurpose::embedding_dropout, static_cast<uint64_t>(ctx.step))};
}

}  // namespace

void Embedding::forward(Context& ctx, const Batch& batch, const Tensor& x) const {
  embedding_forward(x, table.weight(ctx), positions.weight(ctx), scale, batch, embedding_dropout(ctx, dropout),
                    ctx.stream);
}

void Embedding::backward(Context& ctx, const Batch& batch, const Tensor& dx, bool table_written) const {
  const Tensor dtable = table.gradient(ctx), dpositions = positions.gradient(ctx);
  if (!ctx.params.accumulate()) {
    if (!table_written && !dtable.empty()) fill(dtable, 0, ctx.stream);
    if (!dpositions.empty()) fill(dpositions, 0, ctx.stream);
  }
  embedding_backward(dtable, dpositions, dx, scale, batch, embedding_dropout(ctx, dropout), ctx.stream, padding);
}

}  // namespace llmtrain
