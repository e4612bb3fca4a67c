#include "layers/scalar_head.hpp"

#include "kernels/scalar_head.hpp"

namespace llmtrain {

void ScalarHead::forward(Context& ctx, const Tensor& x, const Tensor& loss_weights, const Tensor& scores) const {
  scalar_head_forward(scores, x, weight.weight(ctx), loss_weights, ctx.stream);
}

void ScalarHead::backward(Context& ctx, const Tensor& dx, const Tensor& x, const Tensor& dscores) const {
  const Tensor w = weight.weight(ctx);
  if (weight.is_trained()) {
    scalar_head_backward_weight(weight.gradient(ctx), dscores, x, ctx.params.accumulate(), ctx.stream);
  }
  if (!dx.empty()) scalar_head_backward_input(dx, dscores, w, ctx.stream);
}

}  // namespace llmtrain
