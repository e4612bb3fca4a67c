#include "layers/mlp.hpp"

namespace llmtrain {

int64_t Mlp::scratch_bytes(DType compute, int64_t rows) const {
  return Arena::aligned(rows * down.in * static_cast<int64_t>(size_of(compute)));
}

void Mlp::forward(Context& ctx, const Tensor& y, const Tensor& x, const MlpSaved& saved) const {
  forward_hidden(ctx, x, saved, saved, false);
  down.forward(ctx, y, first_rows(saved.activated, x.dim(0)));
}

void Mlp::forward_hidden(Context& ctx, const Tensor& x, const MlpSaved& saved, const MlpSaved& kept, bool again) const {
  const int64_t n = x.dim(0);
  const Tensor hidden = first_rows(saved.hidden, n), activated = first_rows(saved.activated, n);
  const bool activates_again = kept.activated.empty();
  if (!again || kept.hidden.empty()) up.forward(ctx, hidden, x);
  if (!again && activates_again) {
    activation_value(activation, activated, hidden, ctx.stream);
  } else if (again == activates_again) {
    activation_forward(activation, activated, hidden, ctx.stream);
  }
}

void Mlp::backward(Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x, const MlpSaved& saved) const {
  const int64_t n = x.dim(0);
  Arena::Frame frame(ctx.arena);
  const Tensor dactivated = frame.take(dy.dtype, {n, down.in});
  const Tensor hidden = first_rows(saved.hidden, n);
  const bool goes_on = hidden_gradient(!dx.empty());
  down.backward(ctx, goes_on ? dactivated : Tensor(), dy, first_rows(saved.activated, n));
  if (!goes_on) return;
  activation_backward(hidden, dactivated, hidden, ctx.stream);
  up.backward(ctx, dx, hidden, x);
}

}  // namespace llmtrain
