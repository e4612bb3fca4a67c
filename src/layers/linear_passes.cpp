#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/philox.hpp"
#include "kernels/matmul.hpp"
#include "kernels/workspace.hpp"
#include "layers/adapted_linear.hpp"
#include "layers/linear.hpp"
#include "params/number_hook.hpp"

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

std::vector<int64_t> sections_of(const LinearPart& part) {
  return part.sections.empty() ? std::vector{part.rows} : part.sections;
}

/// First row of a block of a section; blocks are equal but for the last one, which may be shorter.
int64_t begin_of_block(int64_t section, int64_t index, int64_t blocks) {
  return std::min((section + blocks - 1) / blocks * index, section);
}

/// Rows that a block has of a part.
int64_t rows_of_block(const LinearPart& part, const std::optional<LinearBlock>& block) {
  if (!block || block->side == LinearBlock::Side::inputs) return part.rows;
  int64_t rows = 0;
  for (const int64_t section : sections_of(part)) {
    rows +=
        begin_of_block(section, block->index + 1, block->blocks) - begin_of_block(section, block->index, block->blocks);
  }
  return rows;
}

/// Appends the slices of a part's rows, from `row` on, of a parameter with `columns` columns as a whole.
void append_slices(std::vector<ParamSlice>& slices, const std::string& name, const LinearPart& part, int64_t row,
                   int64_t columns, const std::optional<LinearBlock>& block) {
  if (!block) return slices.push_back({name, row, part.rows, part.transposed});
  if (block->side == LinearBlock::Side::inputs) {
    const int64_t first = block->index * (columns / block->blocks);
    return slices.push_back({name, row, part.rows, part.transposed, false, TensorBlock{0, first, part.rows, columns}});
  }
  int64_t first = 0;
  for (const int64_t section : sections_of(part)) {
    const int64_t begin = begin_of_block(section, block->index, block->blocks);
    const int64_t rows = begin_of_block(section, block->index + 1, block->blocks) - begin;
    const TensorBlock place{first + begin, 0, part.rows, columns};
    slices.push_back({name, row, rows, part.transposed, false, place});
    row += rows;
    first += section;
  }
}

/// The adapters of a layer, or of a block of it, and their parameters.
struct AdapterPlan {
  std::vector<Adapter> adapters;
  ParamSpec a;
  std::vector<ParamSpec> b, magnitudes;  ///< of each adapter
};

AdapterPlan plan_adapters(const LinearShape& layer, const AdapterRule& rule, const std::optional<LinearBlock>& block) {
  AdapterPlan plan;
  const bool term = block && block->side == LinearBlock::Side::inputs;
  plan.a = {"", 0, term ? layer.in / block->blocks : layer.in, true, {}, {}};
  int64_t first_row = 0;
  std::optional<AdapterShape> first;
  for (const LinearPart& part : layer.parts) {
    const int64_t row = first_row, rows = rows_of_block(part, block);
    first_row += rows;
    const std::optional<AdapterShape> shape = rule(part.name);
    if (!shape) continue;
    if (!first) first = shape;
    const Initializer init = initial_a(*shape, layer.in);
    LLMTRAIN_CHECK(shape->rank > 0 && shape->dora == first->dora && shape->dropout == first->dropout &&
                       (plan.a.rows == 0 || init.width == plan.a.init.width),
                   "adapters of one matrix differ only in rank, scale and learning rate: " + part.name);
    plan.a.init = init;
    const auto of_inputs = term ? block : std::nullopt, of_outputs = term ? std::nullopt : block;
    const LinearPart ranks{lora_a_name(part.name), shape->rank};
    append_slices(plan.a.slices, ranks.name, ranks, plan.a.rows, layer.in, of_inputs);
    const auto of_rows = [&](const std::string& name, int64_t columns, const Initializer& start) {
      ParamSpec spec{name, rows, columns, columns > 1, start, {}};
      LinearPart outputs = part;
      outputs.transposed = false;
      append_slices(spec.slices, name, outputs, 0, columns, of_outputs);
      spec.lr_scale = shape->learning_rate_ratio;  // also of magnitudes, as PEFT has it
      return spec;
    };
    plan.b.push_back(of_rows(lora_b_name(part.name), shape->rank, Initializer::zeros()));
    plan.b.back().decay = true;
    if (shape->dora) plan.magnitudes.push_back(of_rows(lora_magnitude_name(part.name), 1, Initializer::ones()));
    Adapter adapter;
    adapter.first_row = row;
    adapter.rows = rows;
    adapter.first_rank = plan.a.rows;
    adapter.rank = shape->rank;
    adapter.scale = static_cast<float>(shape->scale);
    adapter.dropout = shape->dropout;
    // Blocks with the same inputs have the same masks, others masks of their own.
    adapter.dropout_name = hash_of_name(term ? fmt::format("{}.{}", part.name, block->index) : part.name);
    plan.adapters.push_back(adapter);
    plan.a.rows += shape->rank;
  }
  if (!plan.adapters.empty()) plan.a.name = plan.a.slices.front().name;
  return plan;
}

/// Declares B and magnitudes.
void declare_outputs(UnitBuilder& unit, AdapterPlan& plan) {
  for (size_t i = 0; i < plan.adapters.size(); ++i) {
    plan.adapters[i].b = unit.trained(plan.b[i]);
    if (!plan.magnitudes.empty()) plan.adapters[i].magnitude = unit.trained(plan.magnitudes[i]);
  }
}

}  // namespace

Linear Linear::declare(UnitBuilder& unit, const std::vector<LinearPart>& parts, int64_t in, bool bias, double std,
                       const AdapterRule& rule) {
  Linear linear;
  linear.in = in;
  for (const LinearPart& part : parts) linear.out += part.rows;
  linear.declare_weight(unit, parts, std, std::nullopt);
  if (bias) linear.declare_bias(unit, parts, std::nullopt);
  if (rule) linear.declare_adapters(unit, parts, rule);
  return linear;
}

void Linear::declare_weight(UnitBuilder& unit, const std::vector<LinearPart>& parts, double std,
                            const std::optional<LinearBlock>& of) {
  const int64_t columns = of && of->side == LinearBlock::Side::inputs ? in * of->blocks : in;
  std::vector<ParamSlice> slices;
  int64_t row = 0;
  for (const LinearPart& part : parts) {
    append_slices(slices, part.name + ".weight", part, row, columns, of);
    row += rows_of_block(part, of);
  }
  weight = unit.hidden_matrix(slices.front().name, out, in, Initializer::normal(std), slices);
  quantized = unit.quantized_type(weight);
  fixed_weight = fixed_rows(unit, slices);
}

void Linear::declare_bias(UnitBuilder& unit, const std::vector<LinearPart>& parts,
                          const std::optional<LinearBlock>& of) {
  std::vector<ParamSlice> slices;
  int64_t row = 0;
  for (LinearPart part : parts) {
    part.transposed = false;
    append_slices(slices, part.name + ".bias", part, row, 1, of);
    row += rows_of_block(part, of);
  }
  bias = unit.vector(slices.front().name, out, Initializer::zeros(), slices);
  fixed_bias = fixed_rows(unit, slices);
}

void Linear::backward_weight(Context& ctx, const Tensor& dy, const Tensor& x) const {
  if (!weight.is_trained()) return;
  for (ParamStore::RowBlocks blocks = ctx.params.row_blocks(weight.unit, weight.param); blocks.next();) {
    ctx.each_row_block(x.dim(0), [&](int64_t first, int64_t count) {
      const Tensor dw = blocks.gradient(), own_dy = dy.rows(first, count), own_x = x.rows(first, count);
      if (count == 0) {
        if (!ctx.params.accumulate()) fill_zero(dw.data, dw.bytes(), ctx.stream);
      } else if (dw.dim(0) == out) {
        linear_backward_weight(dw, own_dy, own_x, ctx.params.accumulate(), ctx.stream);
      } else {
        linear_backward_weight_rows(dw, blocks.first_row(), own_dy, own_x, ctx.params.accumulate(), ctx.stream);
      }
      zero_fixed_rows(dw, blocks.first_row(), ctx.stream);
    });
  }
}

void Linear::zero_fixed_rows(const Tensor& gradient, int64_t first_row, Stream& stream) const {
  zero_rows(gradient, first_row, fixed_weight, stream);
}

void Linear::backward_bias(Context& ctx, const Tensor& dy) const {
  if (!bias.is_trained()) return;
  ctx.each_row_block(dy.dim(0), [&](int64_t first, int64_t count) {
    const Tensor gradient = bias.gradient(ctx);
    if (count > 0) {
      linear_backward_bias(gradient, dy.rows(first, count), ctx.params.accumulate(), ctx.stream);
    } else if (!ctx.params.accumulate()) {
      fill_zero(gradient.data, gradient.bytes(), ctx.stream);
    }
    zero_rows(gradient, 0, fixed_bias, ctx.stream);
  });
}

void Linear::declare_adapters(UnitBuilder& unit, const std::vector<LinearPart>& parts, const AdapterRule& rule) {
  AdapterPlan plan = plan_adapters({parts, in, false, 0}, rule, std::nullopt);
  if (plan.adapters.empty()) return;
  a = unit.trained(plan.a);
  declare_outputs(unit, plan);
  adapters = std::move(plan.adapters);
}

Linear Linear::declare_shared(UnitBuilder& unit, const LinearShape& shape, LinearBlock::Side side,
                              const AdapterRule& rule) {
  const bool of_sum = side == LinearBlock::Side::inputs;
  Linear shared;
  shared.in = shape.in;
  shared.out = shape.out();
  if (shape.bias && of_sum) shared.declare_bias(unit, shape.parts, std::nullopt);
  if (!rule) return shared;
  AdapterPlan plan = plan_adapters(shape, rule, LinearBlock{side, 0, 1});
  if (plan.adapters.empty()) return shared;
  if (of_sum) {
    declare_outputs(unit, plan);
    shared.adapters = std::move(plan.adapters);
  } else {
    shared.a = unit.trained(plan.a);
  }
  return shared;
}

Linear Linear::declare_block(UnitBuilder& unit, const LinearShape& shape, const LinearBlock& block,
                             const Linear& shared, const AdapterRule& rule) {
  const bool term = block.side == LinearBlock::Side::inputs;
  Linear linear;
  linear.block = block;
  linear.in = term ? shape.in / block.blocks : shape.in;
  for (const LinearPart& part : shape.parts) linear.out += rows_of_block(part, block);
  linear.declare_weight(unit, shape.parts, shape.std, block);
  if (shape.bias && !term) linear.declare_bias(unit, shape.parts, block);
  linear.declare_block_adapters(unit, shape, block, shared, rule);
  return linear;
}

void Linear::declare_block_adapters(UnitBuilder& unit, const LinearShape& shape, const LinearBlock& of,
                                    const Linear& shared, const AdapterRule& rule) {
  block = of;
  sums_input_gradient = !is_term();
  if (!rule) return;
  AdapterPlan plan = plan_adapters(shape, rule, of);
  if (plan.adapters.empty()) return;
  const bool term = is_term();
  a = term ? unit.trained(plan.a) : shared.a;
  if (!term) declare_outputs(unit, plan);
  for (size_t i = 0; i < plan.adapters.size() && term; ++i) {
    plan.adapters[i].b = shared.adapters[i].b;
    plan.adapters[i].magnitude = shared.adapters[i].magnitude;
  }
  adapters = std::move(plan.adapters);
}

void Linear::append_shared(std::vector<SharedParam>& shared) const {
  if (!is_term()) {
    if (a.is_trained()) shared.push_back({a, adapters.back().first_rank + adapters.back().rank, in});
    return;
  }
  for (const Adapter& adapter : adapters) {
    shared.push_back({adapter.b, adapter.rows, adapter.rank});
    if (adapter.magnitude.exists()) shared.push_back({adapter.magnitude, adapter.rows, 1});
  }
}

int64_t Linear::workspace_bytes(DType compute, DType output, int64_t rows, bool training) const {
  if (!adapters.empty()) return adapter_workspace_bytes(*this, compute, output, rows, training);
  LinearPass pass{in, out, bias.exists(), compute, output, true, training, 0, quantized};
  pass.wide_gradient = sums_input_gradient;
  return linear_workspace_bytes(pass, rows);
}

int64_t Linear::scratch_bytes(DType compute, DType output, int64_t rows) const {
  return adapters.empty() ? 0 : adapter_scratch_bytes(*this, compute, output, rows);
}

void Linear::forward(Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x) const {
  if (number_hook != nullptr && !quantized) {
    number_hook(NumberKind::weights, weight.unit, weight.matrix(ctx).dense(), ctx.stream);
  }
  if (ctx.adapters && !adapters.empty()) {
    adapted_forward(*this, ctx, batch, y, x);
  } else {
    linear_forward(y, x, weight.matrix(ctx), bias.weight(ctx), ctx.stream, ctx.role);
  }
  if (number_hook != nullptr) number_hook(NumberKind::result, weight.unit, y, ctx.stream);
}

void Linear::backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x) const {
  backward_weight(ctx, dy, x);  // whose trained rows have no adapter
  backward_bias(ctx, dy);
  if (ctx.adapters && !adapters.empty()) {
    return ctx.each_row_block(x.dim(0), [&](int64_t first, int64_t count) {
      if (count == 0) return zero_adapter_gradients(ctx);
      adapted_backward(*this, ctx, batch.rows(first, count), dx.empty() ? dx : dx.rows(first, count),
                       dy.rows(first, count), x.rows(first, count));
    });
  }
  if (dx.empty()) return;
  ctx.each_row_block(x.dim(0), [&](int64_t first, int64_t count) {  // the order of a product may depend on its rows
    if (count == 0) return;
    linear_backward_input(dx.rows(first, count), dy.rows(first, count), weight.matrix(ctx), false, ctx.stream);
  });
}

/// For a pass without rows.
void Linear::zero_adapter_gradients(Context& ctx) const {
  const auto zero = [&](const ParamRef& param) {
    if (!param.is_trained() || param.accumulates(ctx)) return;
    const Tensor gradient = param.gradient(ctx);
    fill_zero(gradient.data, gradient.bytes(), ctx.stream);
  };
  zero(a);
  for (const Adapter& adapter : adapters) {
    zero(adapter.b);
    zero(adapter.magnitude);
  }
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
