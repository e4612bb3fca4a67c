#include <array>
#include <string>
#include <utility>

#include "models/decoder_layers.hpp"

namespace llmtrain {

namespace {

/// Shapes of a gated MLP.
std::pair<LinearShape, LinearShape> gated_shapes(const std::array<std::string, 3>& names, int64_t width,
                                                 const ModelConfig& c, double projection_std) {
  return {{{{names[0], width}, {names[1], width}}, c.d_model, false, c.initializer_std},
          {{{names[2], c.d_model}}, width, false, projection_std}};
}

}  // namespace

LayerDeclarations::Shapes LayerDeclarations::expert_shapes(int layer, int64_t expert) const {
  const DecoderNames& n = shape_.names;
  const auto name = [&](const std::string& pattern) { return at_layer(pattern, layer, expert); };
  const auto [first, last] = gated_shapes({name(n.expert_gate), name(n.expert_up), name(n.expert_down)},
                                          shape_.config.experts.d_ff, shape_.config, shape_.projection_std);
  return {first, last};
}

LayerDeclarations::Shapes LayerDeclarations::shared_expert_shapes(int layer) const {
  const DecoderNames& n = shape_.names;
  const auto name = [&](const std::string& pattern) { return at_layer(pattern, layer); };
  const auto [first, last] = gated_shapes({name(n.shared_gate), name(n.shared_up), name(n.shared_down)},
                                          shape_.config.experts.d_ff_shared, shape_.config, shape_.projection_std);
  return {first, last};
}

Experts LayerDeclarations::declare_experts(UnitBuilder& unit, int layer) const {
  const ModelConfig& c = shape_.config;
  const DecoderNames& names = shape_.names;
  Experts experts;
  experts.rule = c.experts.rule();
  experts.layer = static_cast<int>(c.experts.layers(layer));
  experts.channels = c.d_model;
  const auto declare = [&](const std::string& name, int64_t rows, bool bias) {
    Linear linear = Linear::declare(unit, {part(name, layer, rows)}, c.d_model, bias, c.initializer_std);
    linear.sums_input_gradient = true;
    return linear;
  };
  experts.router = declare(names.router, c.experts.count, c.mlp_bias);
  if (c.has_router_bias()) {
    experts.selection_bias = unit.fixed_vector(at_layer(names.selection_bias, layer), c.experts.count);
  }
  if (c.experts.shared_gate) experts.shared_gate = declare(names.shared_router, 1, false);
  const TensorShare& share = shape_.tensor;
  if (share.splits()) experts.share = share;
  experts.first = share.first * (c.experts.count / share.blocks);
  experts.ranks = shape_.experts.blocks / shape_.experts.count;
  experts.joins = !shape_.adapters && !shape_.quantization;
  if (c.experts.d_ff_shared == 0) return experts;
  experts.shared.emplace();
  Mlp& whole = experts.shared->whole();
  whole.activation = c.activation;
  const Shapes shapes = shared_expert_shapes(layer);
  if (!share.splits()) {
    whole.up = Linear::declare(unit, shapes.first.parts, shapes.first.in, false, shapes.first.std, shape_.adapters);
    whole.down = Linear::declare(unit, shapes.last.parts, shapes.last.in, false, shapes.last.std, shape_.adapters);
    whole.up.sums_input_gradient = true;
    return experts;
  }
  experts.shared_up = experts.shared->declare_shared(unit, shapes.first, shapes.last, share, shape_.adapters);
  experts.shared->blocks.clear();
  return experts;
}

/// Declares this rank's experts of a layer, or of its block of matrices, in units of their own if they are several
/// blocks.
void LayerDeclarations::declare_expert_blocks(UnitBuilder& unit, Experts& experts, int layer, int64_t of_layer) const {
  const TensorShare& share = shape_.experts;
  const int64_t count = shape_.config.experts.count / (shape_.tensor.blocks * share.blocks);
  for (int64_t block = share.first; block < share.first + share.count; ++block) {
    const int first = unit.group().first + unit.group().count;
    if (share.splits()) unit.set_expert_block(block);
    declare_expert_block(unit, experts, layer, (of_layer * share.blocks + block) * count, count);
    if (share.splits()) experts.units.push_back({first, unit.group().first + unit.group().count - first});
  }
}

/// Declares a block of the shared expert.
void LayerDeclarations::declare_shared_block(UnitBuilder& unit, Experts& experts, int layer, int64_t block) const {
  if (!experts.shared) return;
  const Shapes shapes = shared_expert_shapes(layer);
  const int64_t blocks = shape_.tensor.blocks;
  Mlp& mlp = experts.shared->blocks.emplace_back();
  mlp.activation = shape_.config.activation;
  const AdapterRule& rule = shape_.adapters;
  mlp.up =
      Linear::declare_block(unit, shapes.first, {LinearBlock::Side::outputs, block, blocks}, experts.shared_up, rule);
  mlp.down =
      Linear::declare_block(unit, shapes.last, {LinearBlock::Side::inputs, block, blocks}, experts.shared->sum, rule);
}

void LayerDeclarations::declare_expert_block(UnitBuilder& unit, Experts& experts, int layer, int64_t first,
                                             int64_t count) const {
  const ModelConfig& c = shape_.config;
  for (int64_t expert = first; expert < first + count; ++expert) {
    const Shapes shapes = expert_shapes(layer, expert);
    Mlp& mlp = experts.mlps.emplace_back();
    mlp.activation = c.activation;
    mlp.limit = static_cast<float>(c.experts.limit);
    mlp.up = Linear::declare(unit, shapes.first.parts, shapes.first.in, false, shapes.first.std, shape_.adapters);
    mlp.down = Linear::declare(unit, shapes.last.parts, shapes.last.in, false, shapes.last.std, shape_.adapters);
    mlp.up.sums_input_gradient = true;
  }
  if (c.mlp_bias) declare_expert_biases(unit, experts, layer, first, count);
}

/// Declares the biases of the last `count` experts, after all of their matrices, whose gradients arrive in blocks of
/// rows.
void LayerDeclarations::declare_expert_biases(UnitBuilder& unit, Experts& experts, int layer, int64_t first,
                                              int64_t count) const {
  for (int64_t i = 0; i < count; ++i) {
    const Shapes shapes = expert_shapes(layer, first + i);
    Mlp& mlp = experts.mlps[experts.mlps.size() - static_cast<size_t>(count - i)];
    mlp.up.declare_bias(unit, shapes.first.parts);
    Linear down = mlp.down;
    down.declare_bias(unit, shapes.last.parts);
    experts.down_biases.push_back(down.bias);
  }
}

}  // namespace llmtrain
