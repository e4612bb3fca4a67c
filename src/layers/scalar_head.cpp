#include "layers/scalar_head.hpp"

#include "kernels/scalar_head.hpp"

namespace llmtrain {

void ScalarHead::forward(Context& ctx, const Tensor& x, const Tensor& loss_weights, const Tensor& scores) const {
  scalar_head_forward(scores, x, weight.weight(ctx), bias.weight(ctx), loss_weights, ctx.stream);
}

void ScalarHead::backward(Context& ctx, const Tensor& dx, const Tensor& x, const Tensor& dscores) const {
  backward_weight(ctx, x, dscores);
  if (!dx.empty()) scalar_head_backward_input(dx, dscores, weight.weight(ctx), false, ctx.stream);
}

void ScalarHead::backward_weight(Context& ctx, const Tensor& x, const Tensor& dscores) const {
  ctx.each_row_block(x.dim(0), [&](int64_t first, int64_t count) {
    const Tensor part = dscores.rows(first, count);
    const bool accumulate = ctx.params.accumulate();
    if (weight.is_trained()) {
      scalar_head_backward_weight(weight.gradient(ctx), part, x.rows(first, count), accumulate, ctx.stream);
    }
    if (bias.is_trained()) scalar_head_backward_bias(bias.gradient(ctx), part, accumulate, ctx.stream);
  });
}

void ScalarHead::add_input_gradient(Context& ctx, const Tensor& dx, const Tensor& dscores) const {
  scalar_head_backward_input(dx, dscores, weight.weight(ctx), true, ctx.stream);
}

}  // namespace llmtrain
