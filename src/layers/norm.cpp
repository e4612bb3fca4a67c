#include "layers/norm.hpp"

#include "kernels/elementwise.hpp"

namespace llmtrain {

Norm Norm::declare(UnitBuilder& unit, const std::string& name, const NormShape& shape) {
  Norm norm;
  norm.kind = shape.kind;
  norm.epsilon = static_cast<float>(shape.epsilon);
  norm.weight_offset = shape.zero_centered ? 1.0f : 0.0f;
  norm.weight = unit.vector(name + ".weight", shape.channels, shape.initial_weight(), {});
  if (shape.bias && shape.kind == NormKind::layernorm) {
    norm.bias = unit.vector(name + ".bias", shape.channels, Initializer::zeros(), {});
  }
  return norm;
}

NormForward Norm::forward_args(const Context& ctx, const Tensor& y, const Tensor& x, const NormSaved& saved,
                               bool again) const {
  const int64_t n = x.dim(0);
  return {kind,
          y,
          first_rows(saved.mean, n),
          first_rows(saved.rstd, n),
          x,
          weight.weight(ctx),
          bias.weight(ctx),
          epsilon,
          weight_offset,
          again};
}

NormBackward Norm::backward_args(Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x,
                                 const NormSaved& saved, bool accumulate_dx) const {
  const int64_t n = x.dim(0);
  NormBackward args;
  args.kind = kind;
  args.dx = dx;
  args.dweight = weight.gradient(ctx);
  args.dbias = bias.gradient(ctx);
  args.dy = dy;
  args.x = x;
  args.weight = weight.weight(ctx);
  args.mean = first_rows(saved.mean, n);
  args.rstd = first_rows(saved.rstd, n);
  args.weight_offset = weight_offset;
  args.accumulate_dx = accumulate_dx;
  args.accumulate_params = ctx.params.accumulate();
  return args;
}

void Norm::forward(Context& ctx, const Tensor& y, const Tensor& x, const NormSaved& saved, bool again) const {
  if (!exists()) return cast(y, x, ctx.stream);
  norm_forward(forward_args(ctx, y, x, saved, again), ctx.stream);
}

void Norm::backward(Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x, const NormSaved& saved,
                    bool accumulate_dx) const {
  if (!exists()) {
    Batch rows;
    rows.tokens = dx.dim(0);
    return accumulate_dx ? residual_add(dx, dx, dy, rows, {}, ctx.stream) : cast(dx, dy, ctx.stream);
  }
  ctx.each_row_block(x.dim(0), [&](int64_t first, int64_t count) {
    norm_backward(backward_args(ctx, dx, dy, x, saved, accumulate_dx).rows(first, count), ctx.stream);
  });
}

void Norm::forward_sum(Context& ctx, const Tensor& y, const Tensor& x, const NormSaved& saved, const Tensor& in,
                       const ResidualBranch& branch, bool again) const {
  if (!exists()) {
    residual_add(x, in, branch.delta, branch.batch, branch.dropout, ctx.stream);
    return cast(y, x, ctx.stream);
  }
  residual_norm_forward(forward_args(ctx, y, x, saved, again), in, branch, ctx.stream);
}

void Norm::backward_sum(Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x, const NormSaved& saved,
                        bool accumulate_dx, const ResidualBranch& branch) const {
  if (!exists()) {
    backward(ctx, dx, dy, x, saved, accumulate_dx);
    return residual_add_backward(branch.delta, dx, branch.batch, branch.dropout, ctx.stream);
  }
  ctx.each_row_block(x.dim(0), [&](int64_t first, int64_t count) {
    const Batch rows = branch.batch.rows(first, count);
    residual_norm_backward(backward_args(ctx, dx, dy, x, saved, accumulate_dx).rows(first, count),
                           {branch.delta.rows(first, count), rows, branch.dropout}, ctx.stream);
  });
}

}  // namespace llmtrain
