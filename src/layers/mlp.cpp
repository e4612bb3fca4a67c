#include "layers/mlp.hpp"

#include <algorithm>

namespace llmtrain {

int64_t Mlp::scratch_bytes(DType compute, DType output, int64_t rows) const {
  return Arena::aligned(rows * down.in * static_cast<int64_t>(size_of(compute))) +
         std::max(up.scratch_bytes(compute, compute, rows), down.scratch_bytes(compute, output, rows));
}

void Mlp::forward(Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x, const MlpSaved& saved) const {
  forward_hidden(ctx, batch, x, saved, saved, false);
  down.forward(ctx, batch, y, first_rows(saved.activated, x.dim(0)));
}

void Mlp::forward_hidden(Context& ctx, const Batch& batch, const Tensor& x, const MlpSaved& saved, const MlpSaved& kept,
                         bool again) const {
  const int64_t n = x.dim(0);
  const Tensor hidden = first_rows(saved.hidden, n), activated = first_rows(saved.activated, n);
  if (runs_up(kept, again)) up.forward(ctx, batch, hidden, x);
  activate(ctx, activated, hidden, kept, again);
}

void Mlp::activate(Context& ctx, const Tensor& activated, const Tensor& hidden, const MlpSaved& kept,
                   bool again) const {
  const bool activates_again = kept.activated.empty();
  if (!again && activates_again) {
    activation_value(activation, activated, hidden, ctx.stream, limit);
  } else if (again == activates_again) {
    activation_forward(activation, activated, hidden, ctx.stream, limit);
  }
}

void Mlp::backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x,
                   const MlpSaved& saved) const {
  const int64_t n = x.dim(0);
  Arena::Frame frame(ctx.arena);
  const Tensor dactivated = frame.take(dy.dtype, {n, down.in});
  const Tensor hidden = first_rows(saved.hidden, n);
  const bool goes_on = hidden_gradient(!dx.empty());
  down.backward(ctx, batch, goes_on ? dactivated : Tensor(), dy, first_rows(saved.activated, n));
  if (!goes_on) return;
  activation_backward(hidden, dactivated, hidden, ctx.stream);
  up.backward(ctx, batch, dx, hidden, x);
}

}  // namespace llmtrain
