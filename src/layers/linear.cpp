#include "layers/linear.hpp"

#include "kernels/matmul.hpp"
#include "kernels/workspace.hpp"

namespace llmtrain {

Linear Linear::declare(UnitBuilder& unit, const std::vector<LinearPart>& parts, int64_t in, bool bias, double std) {
  Linear linear;
  linear.in = in;
  std::vector<ParamSlice> weights, biases;
  for (const LinearPart& part : parts) {
    weights.push_back({part.name + ".weight", linear.out, part.rows, part.transposed});
    biases.push_back({part.name + ".bias", linear.out, part.rows});
    linear.out += part.rows;
  }
  linear.weight = unit.matrix(weights.front().name, linear.out, in, Initializer::normal(std), weights);
  if (bias) linear.bias = unit.vector(biases.front().name, linear.out, Initializer::zeros(), biases);
  return linear;
}

int64_t Linear::workspace_bytes(DType compute, DType output, int64_t rows, bool training) const {
  return linear_workspace_bytes({in, out, bias.exists(), compute, output, true, training}, rows);
}

void Linear::forward(Context& ctx, const Tensor& y, const Tensor& x) const {
  linear_forward(y, x, weight.weight(ctx), bias.weight(ctx), ctx.stream, ctx.role);
}

void Linear::backward(Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x) const {
  const bool accumulate = ctx.params.accumulate();
  if (weight.is_trained()) linear_backward_weight(weight.gradient(ctx), dy, x, accumulate, ctx.stream);
  if (bias.is_trained()) linear_backward_bias(bias.gradient(ctx), dy, accumulate, ctx.stream);
  if (!dx.empty()) linear_backward_input(dx, dy, weight.weight(ctx), false, ctx.stream);
}

}  // namespace llmtrain
