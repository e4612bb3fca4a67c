#include <algorithm>
#include <cmath>

#include "core/philox.hpp"
#include "kernels/matmul.hpp"
#include "kernels/workspace.hpp"
#include "layers/adapted_linear.hpp"
#include "layers/linear.hpp"

namespace llmtrain {

namespace {

Initializer initial_a(const AdapterShape& shape, int64_t in) {
  return shape.init == AdapterShape::Init::gaussian ? Initializer::normal(1.0 / static_cast<double>(shape.rank))
                                                    : Initializer::uniform(1.0 / std::sqrt(static_cast<double>(in)));
}

/// Rows that are not trained; none if no row is.
std::vector<Linear::Rows> fixed_rows(const UnitBuilder& unit, const std::vector<ParamSlice>& slices) {
  std::vector<Linear::Rows> rows;
  for (const ParamSlice& slice : slices) {
    if (!unit.is_trained(slice.name)) rows.push_back({slice.first_row, slice.rows});
  }
  if (rows.size() == slices.size()) rows.clear();
  return rows;
}

/// `gradient` has rows of the matrix from `first_row` on.
void zero_rows(const Tensor& gradient, int64_t first_row, const std::vector<Linear::Rows>& fixed, Stream& stream) {
  for (const Linear::Rows& rows : fixed) {
    const int64_t begin = std::max<int64_t>(rows.first - first_row, 0);
    const int64_t end = std::min(rows.first + rows.count - first_row, gradient.dim(0));
    if (begin >= end) continue;
    const Tensor part = gradient.rows(begin, end - begin);
    fill_zero(part.data, part.bytes(), stream);
  }
}

}  // namespace

Linear Linear::declare(UnitBuilder& unit, const std::vector<LinearPart>& parts, int64_t in, bool bias, double std,
                       const AdapterRule& rule) {
  Linear linear;
  linear.in = in;
  std::vector<ParamSlice> weights, biases;
  for (const LinearPart& part : parts) {
    weights.push_back({part.name + ".weight", linear.out, part.rows, part.transposed});
    biases.push_back({part.name + ".bias", linear.out, part.rows});
    linear.out += part.rows;
  }
  linear.weight = unit.hidden_matrix(weights.front().name, linear.out, in, Initializer::normal(std), weights);
  linear.quantized = unit.quantized_type(linear.weight);
  linear.fixed_weight = fixed_rows(unit, weights);
  if (bias) {
    linear.bias = unit.vector(biases.front().name, linear.out, Initializer::zeros(), biases);
    linear.fixed_bias = fixed_rows(unit, biases);
  }
  if (rule) linear.declare_adapters(unit, parts, rule);
  return linear;
}

void Linear::backward_weight(Context& ctx, const Tensor& dy, const Tensor& x) const {
  if (!weight.is_trained()) return;
  for (ParamStore::RowBlocks blocks = ctx.params.row_blocks(weight.unit, weight.param); blocks.next();) {
    ctx.each_block(x.dim(0), [&](int64_t first, int64_t count) {
      const Tensor dw = blocks.gradient(), own_dy = dy.rows(first, count), own_x = x.rows(first, count);
      if (dw.dim(0) == out) {
        linear_backward_weight(dw, own_dy, own_x, ctx.params.accumulate(), ctx.stream);
      } else {
        linear_backward_weight_rows(dw, blocks.first_row(), own_dy, own_x, ctx.params.accumulate(), ctx.stream);
      }
      zero_rows(dw, blocks.first_row(), fixed_weight, ctx.stream);
    });
  }
}

void Linear::backward_bias(Context& ctx, const Tensor& dy) const {
  if (!bias.is_trained()) return;
  ctx.each_block(dy.dim(0), [&](int64_t first, int64_t count) {
    const Tensor gradient = bias.gradient(ctx);
    linear_backward_bias(gradient, dy.rows(first, count), ctx.params.accumulate(), ctx.stream);
    zero_rows(gradient, 0, fixed_bias, ctx.stream);
  });
}

void Linear::declare_adapters(UnitBuilder& unit, const std::vector<LinearPart>& parts, const AdapterRule& rule) {
  std::vector<ParamSpec> specs;  // of B and magnitudes
  ParamSpec whole{"", 0, in, true, {}, {}};
  int64_t first_row = 0;
  std::optional<AdapterShape> first;
  for (const LinearPart& part : parts) {
    const int64_t row = first_row;
    first_row += part.rows;
    const std::optional<AdapterShape> shape = rule(part.name);
    if (!shape) continue;
    if (!first) first = shape;
    const Initializer init = initial_a(*shape, in);
    LLMTRAIN_CHECK(shape->rank > 0 && shape->dora == first->dora && shape->dropout == first->dropout &&
                       (whole.rows == 0 || init.width == whole.init.width),
                   "adapters of one matrix differ only in rank, scale and learning rate: " + part.name);
    whole.init = init;
    whole.slices.push_back({lora_a_name(part.name), whole.rows, shape->rank});
    specs.push_back({lora_b_name(part.name), part.rows, shape->rank, true, Initializer::zeros(), {}});
    specs.back().lr_scale = shape->learning_rate_ratio;
    if (shape->dora) {
      specs.push_back({lora_magnitude_name(part.name), part.rows, 1, false, Initializer::ones(), {}});
      specs.back().lr_scale = shape->learning_rate_ratio;  // as PEFT has it
    }
    Adapter adapter;
    adapter.first_row = row;
    adapter.rows = part.rows;
    adapter.first_rank = whole.rows;
    adapter.rank = shape->rank;
    adapter.scale = static_cast<float>(shape->scale);
    adapter.dropout = shape->dropout;
    adapter.dropout_name = hash_of_name(part.name);
    adapters.push_back(adapter);
    whole.rows += shape->rank;
  }
  if (adapters.empty()) return;
  whole.name = whole.slices.front().name;
  a = unit.trained(whole);
  auto spec = specs.begin();
  for (Adapter& adapter : adapters) {
    adapter.b = unit.trained(*spec++);
    if (first->dora) adapter.magnitude = unit.trained(*spec++);
  }
}

int64_t Linear::workspace_bytes(DType compute, DType output, int64_t rows, bool training) const {
  if (!adapters.empty()) return adapter_workspace_bytes(*this, compute, output, rows, training);
  return linear_workspace_bytes({in, out, bias.exists(), compute, output, true, training, 0, quantized}, rows);
}

int64_t Linear::scratch_bytes(DType compute, DType output, int64_t rows) const {
  return adapters.empty() ? 0 : adapter_scratch_bytes(*this, compute, output, rows);
}

void Linear::forward(Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x) const {
  if (ctx.adapters && !adapters.empty()) return adapted_forward(*this, ctx, batch, y, x);
  linear_forward(y, x, weight.matrix(ctx), bias.weight(ctx), ctx.stream, ctx.role);
}

void Linear::backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x) const {
  if (ctx.adapters && !adapters.empty()) {
    return ctx.each_block(x.dim(0), [&](int64_t first, int64_t count) {
      adapted_backward(*this, ctx, batch.rows(first, count), dx.empty() ? dx : dx.rows(first, count),
                       dy.rows(first, count), x.rows(first, count));
    });
  }
  backward_weight(ctx, dy, x);
  backward_bias(ctx, dy);
  if (!dx.empty()) linear_backward_input(dx, dy, weight.matrix(ctx), false, ctx.stream);
}

double Linear::product_flops(bool input_gradient) const {
  const double input = input_gradient ? 1 : 0;
  double flops = 2 * (1 + (weight.is_trained() ? 1 : 0) + input) * static_cast<double>(in) * static_cast<double>(out);
  for (const Adapter& adapter : adapters) {
    const auto rank = static_cast<double>(adapter.rank);
    flops += 2 * rank * (3 * static_cast<double>(adapter.rows) + (2 + input) * static_cast<double>(in));
  }
  return flops;
}

}  // namespace llmtrain
