#include "models/decoder_layers.hpp"

#include <fmt/format.h>

#include <cmath>
#include <span>

#include "models/rope/rope_frequencies.hpp"

namespace llmtrain {

namespace {

/// Calls f(mlp) for the MLPs in block i of a layer: one, or those of the shared expert and of some experts.
template <class F>
void each_mlp_of_block(Block& block, size_t i, const F& f) {
  if (!block.experts) return f(block.mlp.blocks[i]);
  Experts& experts = *block.experts;
  if (experts.shared) f(experts.shared->blocks[i]);
  const size_t count = experts.mlps.size() / block.attention.blocks.size();
  for (Mlp& mlp : std::span(experts.mlps).subspan(i * count, count)) f(mlp);
}

}  // namespace

LinearPart LayerDeclarations::part(const std::string& name, int layer, int64_t rows,
                                   std::vector<int64_t> sections) const {
  return {at_layer(name, layer), rows, shape_.names.transposed_linear_layers, std::move(sections)};
}

Block LayerDeclarations::declare(std::vector<UnitSpec>& units, int layer, UnitGroup& own) const {
  const ModelConfig& c = shape_.config;
  const DecoderNames& names = shape_.names;
  UnitBuilder unit(units, fmt::format("block.{}", layer), shape_.trained, shape_.quantization);

  Block block;
  block.layer = layer;
  block.channels = c.d_model;
  block.pre_norm = c.pre_norm;
  block.sandwich = c.sandwich_norm;
  block.parallel = c.parallel_residual;
  block.branch_scale = static_cast<float>(c.residual_multiplier);
  block.dropout = c.dropout;
  if (c.input_norm) block.norm1 = shape_.declare_norm(unit, at_layer(names.norm1, layer));
  if (c.input_norm && !c.shared_norm) block.norm2 = shape_.declare_norm(unit, at_layer(names.norm2, layer));
  if (c.sandwich_norm) {
    block.post_attention = shape_.declare_norm(unit, at_layer(names.post_attention, layer));
    block.post_mlp = shape_.declare_norm(unit, at_layer(names.post_mlp, layer));
  }
  block.attention.whole() = declare_heads(unit, layer);
  block.mlp.whole().activation = c.activation;
  const bool has_experts = c.experts.in_layer(layer);
  unit.set_early(true);  // the backward pass has routers and shared experts before attention
  if (has_experts) block.experts = declare_experts(unit, layer);
  unit.set_early(false);
  shape_.tensor.splits() ? declare_split(unit, block) : declare_whole(unit, block);
  for (size_t i = 0; i < block.attention.blocks.size(); ++i) {
    Attention& attention = block.attention.blocks[i];
    attention.cache = static_cast<size_t>(layer) * block.attention.blocks.size() + i;
    size_t index = shape_.kept_norms_of(layer, i);
    for (Linear* linear : {&attention.qkv, &attention.projection}) linear->kept_norms = index++;
    // There is no qkv.
    if (block.attention.splits_latent()) block.attention.low.kept_norms = shape_.kept_norms_of(layer, 0);
    if (LatentProjection* latent = attention.latent ? &*attention.latent : nullptr) {
      for (Linear* linear : {&latent->query, &latent->keys}) linear->kept_norms = index++;
    }
    each_mlp_of_block(block, i, [&](Mlp& mlp) {
      for (Linear* linear : {&mlp.up, &mlp.down}) linear->kept_norms = index++;
    });
  }
  own = unit.group();
  if (block.experts && !block.experts->units.empty()) own.count = block.experts->units.front().first - own.first;
  return block;
}

void LayerDeclarations::declare_whole(UnitBuilder& unit, Block& block) const {
  const ModelConfig& c = shape_.config;
  const auto declare = [&](const LinearShape& s) {
    return Linear::declare(unit, s.parts, s.in, s.bias, s.std, shape_.adapters);
  };
  const Shapes heads = attention_shapes(block.layer);
  block.attention.whole().qkv = declare(heads.first);
  if (c.latent.exist()) declare_latent(unit, block.attention.whole(), block.layer);
  block.attention.whole().projection = declare(heads.last);
  declare_sinks(unit, block.attention.whole(), block.layer);
  if (block.experts) return declare_expert_blocks(unit, *block.experts, block.layer, 0);
  const Shapes mlp = mlp_shapes(block.layer);
  block.mlp.whole().up = declare(mlp.first);
  block.mlp.whole().down = declare(mlp.last);
}

void LayerDeclarations::declare_split(UnitBuilder& unit, Block& block) const {
  const TensorShare& share = shape_.tensor;
  const AdapterRule& rule = shape_.adapters;
  const ModelConfig& c = shape_.config;
  const Shapes heads = attention_shapes(block.layer), mlp = mlp_shapes(block.layer);
  const Shapes latent = c.latent.exist() ? latent_shapes(block.layer) : Shapes{heads.first, {}};
  Linear keys;
  if (c.latent.exist()) {
    LinearShape low = heads.first;
    if (c.latent.query_rank == 0) low.parts.erase(low.parts.begin());  // the queries
    block.attention.low = Linear::declare(unit, low.parts, low.in, low.bias, low.std, rule);
    block.attention.low.sums_input_gradient = c.latent.query_rank == 0;
    declare_latent(unit, block.attention.whole(), block.layer);
    block.attention.whole().latent->split = true;
    keys = Linear::declare_shared(unit, latent.last, LinearBlock::Side::outputs, rule);
  }
  const Linear qkv = block.attention.declare_shared(unit, latent.first, heads.last, share, rule);
  const Linear up = block.experts ? Linear() : block.mlp.declare_shared(unit, mlp.first, mlp.last, share, rule);
  const Attention all_heads = block.attention.whole();
  const Mlp all_channels = block.mlp.whole();
  block.attention.blocks.clear();
  block.mlp.blocks.clear();
  shape_.each_tensor_block([&](int64_t index) {
    const LinearBlock outputs{LinearBlock::Side::outputs, index, share.blocks};
    const LinearBlock inputs{LinearBlock::Side::inputs, index, share.blocks};
    unit.set_block(index);
    Attention& attention = block.attention.blocks.emplace_back(all_heads);
    attention.shape.heads /= share.blocks;
    attention.shape.kv_heads /= share.blocks;
    attention.shape.first_head = index * attention.shape.heads;
    if (c.qk_norm_whole) declare_head_norms(unit, attention, block.layer);
    Linear& queries = attention.latent ? attention.latent->query : attention.qkv;
    queries = Linear::declare_block(unit, latent.first, outputs, qkv, rule);
    if (attention.latent) {
      attention.latent->heads = c.latent.heads(attention.shape.heads);
      attention.latent->keys = Linear::declare_block(unit, latent.last, outputs, keys, rule);
    }
    attention.projection = Linear::declare_block(unit, heads.last, inputs, block.attention.sum, rule);
    declare_sinks(unit, attention, block.layer);
    if (block.experts) return declare_shared_block(unit, *block.experts, block.layer, index);
    Mlp& own = block.mlp.blocks.emplace_back(all_channels);
    own.up = Linear::declare_block(unit, mlp.first, outputs, up, rule);
    own.down = Linear::declare_block(unit, mlp.last, inputs, block.mlp.sum, rule);
  });
  if (!block.experts) return;
  shape_.each_tensor_block([&](int64_t index) {
    unit.set_block(index);
    declare_expert_blocks(unit, *block.experts, block.layer, index);
  });
}

/// Declares the sinks of the heads, which may be some of all.
void LayerDeclarations::declare_sinks(UnitBuilder& unit, Attention& attention, int layer) const {
  const ModelConfig& c = shape_.config;
  if (!c.attention_sinks) return;
  const std::string name = at_layer(shape_.names.sinks, layer);
  ParamSlice slice{name, 0, attention.shape.heads};
  if (shape_.tensor.splits()) slice.block = TensorBlock{attention.shape.first_head, 0, c.n_heads, 1};
  attention.sinks = unit.vector(name, slice.rows, Initializer::normal(c.initializer_std), {slice});
}

namespace {

/// DeepSeek's factor on scores: the square of yarn's factor by mscale_all_dim.
double latent_scale(const ModelConfig& c) {
  const RopeScaling& s = c.rope_scaling;
  if (!c.latent.exist() || s.kind != RopeScaling::Kind::yarn || s.mscale_all_dim == 0) return 1;
  const double factor = yarn_attention_scale(s.mscale_all_dim, yarn_factor(c));
  return factor * factor;
}

}  // namespace

/// Declares attention without its matrices.
Attention LayerDeclarations::declare_heads(UnitBuilder& unit, int layer) const {
  const ModelConfig& c = shape_.config;
  const double scalar = c.query_pre_attn_scalar > 0 ? c.query_pre_attn_scalar : static_cast<double>(c.head_dim);
  Attention attention;
  attention.layer = layer;
  attention.dropout = c.attention_dropout;
  attention.grouped = shape_.names.grouped_heads;
  attention.shape = {c.n_heads,
                     c.n_kv_heads,
                     c.head_dim,
                     c.window_of_layer(layer),
                     static_cast<float>(latent_scale(c) / std::sqrt(scalar)),
                     static_cast<float>(c.attention_softcap)};
  if (!c.qk_norm_whole || !shape_.tensor.splits()) declare_head_norms(unit, attention, layer);
  return attention;
}

/// Declares the norms of queries and keys, if there are some: those over all heads have the weights of its heads, which
/// may be some of all.
void LayerDeclarations::declare_head_norms(UnitBuilder& unit, Attention& attention, int layer) const {
  const ModelConfig& c = shape_.config;
  if (!c.qk_norm) return;
  const Initializer ones = c.zero_centered_norm ? Initializer::zeros() : Initializer::ones();
  const auto declare = [&](const std::string& pattern, int64_t heads, int64_t all_heads) {
    const std::string name = at_layer(pattern, layer) + ".weight";
    ParamSlice slice{name, 0, (c.qk_norm_whole ? heads : 1) * c.head_dim};
    if (c.qk_norm_whole && heads < all_heads) {
      const int64_t first = attention.shape.first_head / attention.shape.heads * slice.rows;
      slice.block = TensorBlock{first, 0, all_heads * c.head_dim, 1};
    }
    return unit.vector(name, slice.rows, ones, {slice});
  };
  attention.query_norm = declare(shape_.names.query_norm, attention.shape.heads, c.n_heads);
  attention.key_norm = declare(shape_.names.key_norm, attention.shape.kv_heads, c.n_kv_heads);
  attention.norms_whole_rows = c.qk_norm_whole;
  attention.norm_epsilon = static_cast<float>(c.norm_epsilon);
  attention.norm_weight_offset = c.zero_centered_norm ? 1.0f : 0.0f;
}

/// Declares what lies between the first matrix of latent attention and its heads, without the matrices if they are
/// split.
void LayerDeclarations::declare_latent(UnitBuilder& unit, Attention& attention, int layer) const {
  const ModelConfig& c = shape_.config;
  const DecoderNames& names = shape_.names;
  LatentProjection& latent = attention.latent.emplace();
  latent.heads = c.latent.heads(c.n_heads);
  latent.query_rank = c.latent.query_rank;
  latent.key_rank = c.latent.rank;
  const auto norm = [&](const std::string& name, int64_t channels) {
    return Norm::declare(unit, at_layer(name, layer),
                         {NormKind::rmsnorm, LatentConfig::norm_epsilon, false, false, channels});
  };
  const Shapes shapes = latent_shapes(layer);
  const auto linear = [&](const LinearShape& s) {
    return shape_.tensor.splits() ? Linear() : Linear::declare(unit, s.parts, s.in, s.bias, s.std, shape_.adapters);
  };
  if (latent.query_rank > 0) {
    latent.query_norm = norm(names.query_low_norm, latent.query_rank);
    latent.query = linear(shapes.first);
  }
  latent.key_norm = norm(names.key_low_norm, latent.key_rank);
  latent.keys = linear(shapes.last);
}

LayerDeclarations::Shapes LayerDeclarations::latent_shapes(int layer) const {
  const ModelConfig& c = shape_.config;
  const LatentHeads heads = c.latent.heads(c.n_heads);
  const bool narrow = c.latent.query_rank > 0;
  const std::string& query = narrow ? shape_.names.query_high : shape_.names.query;
  return {
      {{part(query, layer, heads.query_columns())}, narrow ? c.latent.query_rank : c.d_model, false, c.initializer_std},
      {{part(shape_.names.key_high, layer, heads.key_columns())}, c.latent.rank, false, c.initializer_std}};
}

LayerDeclarations::Shapes LayerDeclarations::attention_shapes(int layer) const {
  const ModelConfig& c = shape_.config;
  const DecoderNames& names = shape_.names;
  if (const LatentConfig& l = c.latent; l.exist()) {
    const std::string& queries = l.query_rank > 0 ? names.query_low : names.query;
    return {{{part(queries, layer, l.query_rows(c.n_heads)), part(names.key_low, layer, l.rank + l.rotated)},
             c.d_model,
             c.qkv_bias,
             c.initializer_std},
            {{part(names.projection, layer, c.d_model)},
             c.n_heads * l.value,
             c.attention_output_bias,
             shape_.projection_std}};
  }
  const int64_t queries = c.n_heads * c.head_dim, keys = c.n_kv_heads * c.head_dim;
  std::vector<LinearPart> qkv;
  if (names.grouped_heads) {
    qkv = {part(names.qkv[0], layer, queries + 2 * keys)};
  } else if (names.qkv.size() == 1) {
    qkv = {part(names.qkv[0], layer, queries + 2 * keys, {queries, keys, keys})};
  } else {
    qkv = {part(names.qkv[0], layer, queries), part(names.qkv[1], layer, keys), part(names.qkv[2], layer, keys)};
  }
  return {{qkv, c.d_model, c.qkv_bias, c.initializer_std},
          {{part(names.projection, layer, c.d_model)}, queries, c.attention_output_bias, shape_.projection_std}};
}

LayerDeclarations::Shapes LayerDeclarations::mlp_shapes(int layer) const {
  const ModelConfig& c = shape_.config;
  const DecoderNames& names = shape_.names;
  std::vector<LinearPart> up = {part(names.up, layer, c.d_ff)};
  if (c.gated() && names.gate.empty()) {
    up = {part(names.up, layer, 2 * c.d_ff, {c.d_ff, c.d_ff})};
  } else if (c.gated()) {
    up.insert(up.begin(), part(names.gate, layer, c.d_ff));
  }
  return {{up, c.d_model, c.mlp_bias, c.initializer_std},
          {{part(names.down, layer, c.d_model)}, c.d_ff, c.mlp_bias, shape_.projection_std}};
}

}  // namespace llmtrain
