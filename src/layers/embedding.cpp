#include "layers/embedding.hpp"

#include "kernels/elementwise.hpp"
#include "kernels/embedding.hpp"

namespace llmtrain {

void Embedding::forward(Context& ctx, const Batch& batch, const Tensor& x) const {
  embedding_forward(x, table.weight(ctx), positions.weight(ctx), scale, batch,
                    step_dropout(ctx, dropout, RandomPurpose::embedding_dropout), ctx.stream);
}

void Embedding::backward(Context& ctx, const Batch& batch, const Tensor& dx, bool table_written) const {
  const Tensor dtable = table.gradient(ctx), dpositions = positions.gradient(ctx);
  if (!ctx.params.accumulate()) {
    if (!table_written && !dtable.empty()) fill(dtable, 0, ctx.stream);
    if (!dpositions.empty()) fill(dpositions, 0, ctx.stream);
  }
  embedding_backward(dtable, dpositions, dx, scale, batch, step_dropout(ctx, dropout, RandomPurpose::embedding_dropout),
                     ctx.stream, padding);
}

}  // namespace llmtrain
