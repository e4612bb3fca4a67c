#include "layers/mlp.hpp"

namespace llmtrain {

void Mlp::plan_saved(Arena& arena, MlpSaved& saved, DType compute, int64_t rows, const std::string& name) const {
  arena.add(saved.hidden, MemoryCategory::activations, name + ".hidden", compute, {rows, up.out});
  arena.add(saved.activated, MemoryCategory::activations, name + ".activated", compute, {rows, down.in});
}

int64_t Mlp::scratch_bytes(DType compute, int64_t rows) const {
  return Arena::aligned(rows * down.in * static_cast<int64_t>(size_of(compute)));
}

void Mlp::forward(Context& ctx, const Tensor& y, const Tensor& x, const MlpSaved& saved) const {
  const int64_t n = x.dim(0);
  const Tensor hidden = first_rows(saved.hidden, n), activated = first_rows(saved.activated, n);
  up.forward(ctx, hidden, x);
  activation_forward(activation, activated, hidden, ctx.stream);
  down.forward(ctx, y, activated);
}

void Mlp::backward(Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x, const MlpSaved& saved) const {
  const int64_t n = x.dim(0);
  Arena::Frame frame(ctx.arena);
  const Tensor dactivated = frame.take(dy.dtype, {n, down.in});
  const Tensor hidden = first_rows(saved.hidden, n);
  down.backward(ctx, dactivated, dy, first_rows(saved.activated, n));
  activation_backward(hidden, dactivated, hidden, ctx.stream);
  up.backward(ctx, dx, hidden, x);
}

}  // namespace llmtrain
