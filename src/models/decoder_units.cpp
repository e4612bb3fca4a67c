#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "models/decoder.hpp"
#include "models/rope/rope_frequencies.hpp"

namespace llmtrain {

namespace {

NormKind kind_of(ModelConfig::Norm norm) {
  return norm == ModelConfig::Norm::layernorm ? NormKind::layernorm : NormKind::rmsnorm;
}

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

Activation activation_of(ModelConfig::Activation activation) {
  switch (activation) {
    case ModelConfig::Activation::gelu:
      return Activation::gelu;
    case ModelConfig::Activation::gelu_tanh:
      return Activation::gelu_tanh;
    case ModelConfig::Activation::relu:
      return Activation::relu;
    case ModelConfig::Activation::silu:
      return Activation::silu;
    case ModelConfig::Activation::swiglu:
      return Activation::swiglu;
    case ModelConfig::Activation::geglu:
      return Activation::geglu;
    case ModelConfig::Activation::geglu_tanh:
      return Activation::geglu_tanh;
    case ModelConfig::Activation::swiglu_oai:
      return Activation::swiglu_oai;
  }
  throw Error("unknown activation");
}

std::string at_layer(const std::string& name, int64_t layer, int64_t expert) {
  return fmt::format(fmt::runtime(name), layer, expert);
}

void Decoder::declare_units() {
  const ModelConfig& c = shape_.config;
  declare_embedding();
  for (int layer = 0; layer < c.n_layers; ++layer) blocks_.push_back(declare_block(layer));

  const auto spans = [&](const ParamRef& table) {
    if (table.exists()) units_[static_cast<size_t>(table.unit)].spans_backward = c.ties_head();
  };
  spans(embedding_.table);
  for (const Embedding::TableBlock& block : embedding_.blocks) spans(block.rows);
  UnitBuilder unit(units_, "final", shape_.trained, shape_.quantization);
  if (shape_.final_norm) final_norm_ = declare_norm(unit, shape_.names.final_norm);
  if (c.scores()) {
    const std::string& name = shape_.names.score;
    const int64_t outputs = c.outputs();
    scalar_head_.weight =
        unit.trained({name + ".weight", outputs, c.d_model, true, Initializer::normal(c.initializer_std), {}});
    if (c.head == ModelConfig::Head::token_score) {
      scalar_head_.bias = unit.trained({name + ".bias", outputs, 1, false, Initializer::zeros(), {}});
    }
  } else {
    declare_head(unit);
  }
  final_units_ = unit.group();
  find_backward_end();
  find_head_units();
  if (c.positions == ModelConfig::Positions::rope) rope_ = make_rope(c);
}

void Decoder::declare_embedding() {
  const ModelConfig& c = shape_.config;
  const DecoderNames& names = shape_.names;
  const auto normal = Initializer::normal(c.initializer_std);
  UnitBuilder unit(units_, "embedding", shape_.trained);
  if (!shape_.tensor.splits()) {
    embedding_.table = unit.matrix(names.embedding + ".weight", c.vocab_size, c.d_model, normal, {});
  }
  if (c.positions == ModelConfig::Positions::learned) {
    embedding_.positions = unit.matrix(names.positions + ".weight", c.max_seq_len, c.d_model, normal, {});
  }
  embedding_.table_adapter = TableAdapter::declare(unit, names.embedding, c.vocab_size, c.d_model, shape_.adapters);
  if (embedding_.positions.exists()) {
    embedding_.positions_adapter =
        TableAdapter::declare(unit, names.positions, c.max_seq_len, c.d_model, shape_.adapters);
  }
  if (shape_.tensor.splits()) {
    const int64_t rows = SplitHead::rows_of_block(c.vocab_size, shape_.tensor.blocks);
    LLMTRAIN_CHECK((shape_.tensor.blocks - 1) * rows < c.vocab_size, "every block of the vocabulary has tokens");
    each_tensor_block([&](int64_t block) {
      embedding_.blocks.push_back({declare_table(unit, names.embedding, block), block * rows});
    });
  }
  embedding_.dropout = c.dropout;
  embedding_.padding = static_cast<int32_t>(c.pad_token_id);
  embedding_units_ = unit.group();
}

/// Declares a block of the rows of the embedding or an untied head.
ParamRef Decoder::declare_table(UnitBuilder& unit, const std::string& name, int64_t block) const {
  const ModelConfig& c = shape_.config;
  const int64_t rows = SplitHead::rows_of_block(c.vocab_size, shape_.tensor.blocks), first = block * rows;
  const int64_t count = std::min(rows, c.vocab_size - first);
  const std::string tensor = name + ".weight";
  unit.set_block(block);
  return unit.matrix(tensor, count, c.d_model, Initializer::normal(c.initializer_std),
                     {{tensor, 0, count, false, false, TensorBlock{first, 0, c.vocab_size, c.d_model}}});
}

void Decoder::declare_head(UnitBuilder& unit) {
  const ModelConfig& c = shape_.config;
  const std::string& name = shape_.names.head;
  head_.rows = c.vocab_size;
  head_.vocabulary = shape_.tokens;
  if (shape_.tensor.splits()) {
    head_.share = shape_.tensor;
    head_.blocks.clear();
    const LinearShape whole{{{name, c.vocab_size}}, c.d_model, false, 0};
    const Linear shared = Linear::declare_shared(unit, whole, LinearBlock::Side::outputs, shape_.adapters);
    return each_tensor_block([&](int64_t index) { declare_head_block(unit, index, shared); });
  }
  head_.whole().vocabulary = shape_.tokens;
  head_.whole().softcap = static_cast<float>(c.final_softcap);
  Linear& linear = head_.whole().linear;
  linear.in = c.d_model;
  linear.out = c.vocab_size;
  linear.kept_norms = kept_norms_of(static_cast<int>(c.n_layers), 0);
  if (c.ties_head()) {
    linear.weight = embedding_.table;
  } else {
    linear.weight = unit.matrix(name + ".weight", c.vocab_size, c.d_model, Initializer::normal(c.initializer_std), {});
    linear.quantized = unit.quantized_type(linear.weight);
  }
  if (shape_.adapters) linear.declare_adapters(unit, {{name, c.vocab_size}}, shape_.adapters);
}

void Decoder::declare_head_block(UnitBuilder& unit, int64_t index, const Linear& shared) {
  const ModelConfig& c = shape_.config;
  const int64_t blocks = shape_.tensor.blocks, widest = SplitHead::rows_of_block(c.vocab_size, blocks);
  const std::string& name = shape_.names.head;
  const LinearShape whole{{{name, c.vocab_size}}, c.d_model, false, 0};
  const size_t own = head_.blocks.size();
  unit.set_block(index);
  Head head;
  head.first_token = index * widest;
  head.all_tokens = shape_.tokens;
  head.softcap = static_cast<float>(c.final_softcap);
  head.linear.in = c.d_model;
  head.linear.out = std::min(widest, c.vocab_size - head.first_token);
  head.vocabulary = std::clamp<int64_t>(shape_.tokens - head.first_token, 0, head.linear.out);
  head.linear.kept_norms = kept_norms_of(static_cast<int>(c.n_layers), own);
  if (c.ties_head()) {
    head.linear.weight = embedding_.blocks[own].rows;
  } else {
    head.linear.weight = declare_table(unit, name, index);
    head.linear.quantized = unit.quantized_type(head.linear.weight);
  }
  head.linear.declare_block_adapters(unit, whole, {LinearBlock::Side::outputs, index, blocks}, shared, shape_.adapters);
  Head wide = head;
  wide.linear.out = widest;
  head.split_columns = blocks * wide.columns();
  head_.blocks.push_back(head);
}

LinearPart Decoder::part(const std::string& name, int layer, int64_t rows, std::vector<int64_t> sections) const {
  return {at_layer(name, layer), rows, shape_.names.transposed_linear_layers, std::move(sections)};
}

Norm Decoder::declare_norm(UnitBuilder& unit, const std::string& name) const {
  const ModelConfig& c = shape_.config;
  return Norm::declare(unit, name, {kind_of(c.norm), c.norm_epsilon, c.bias, c.zero_centered_norm, c.d_model});
}

Block Decoder::declare_block(int layer) {
  const ModelConfig& c = shape_.config;
  const DecoderNames& names = shape_.names;
  UnitBuilder unit(units_, fmt::format("block.{}", layer), shape_.trained, shape_.quantization);

  Block block;
  block.layer = layer;
  block.channels = c.d_model;
  block.pre_norm = c.pre_norm;
  block.sandwich = c.sandwich_norm;
  block.dropout = c.dropout;
  block.norm1 = declare_norm(unit, at_layer(names.norm1, layer));
  block.norm2 = declare_norm(unit, at_layer(names.norm2, layer));
  if (c.sandwich_norm) {
    block.post_attention = declare_norm(unit, at_layer(names.post_attention, layer));
    block.post_mlp = declare_norm(unit, at_layer(names.post_mlp, layer));
  }
  block.attention.whole() = declare_heads(unit, layer);
  block.mlp.whole().activation = activation_of(c.activation);
  const bool has_experts = c.experts.in_layer(layer);
  if (has_experts) block.experts = declare_experts(unit, layer);
  shape_.tensor.splits() ? declare_split(unit, block) : declare_whole(unit, block);
  for (size_t i = 0; i < block.attention.blocks.size(); ++i) {
    Attention& attention = block.attention.blocks[i];
    attention.cache = static_cast<size_t>(layer) * block.attention.blocks.size() + i;
    size_t index = kept_norms_of(layer, i);
    for (Linear* linear : {&attention.qkv, &attention.projection}) linear->kept_norms = index++;
    if (LatentProjection* latent = attention.latent ? &*attention.latent : nullptr) {
      for (Linear* linear : {&latent->query, &latent->keys}) linear->kept_norms = index++;
    }
    each_mlp_of_block(block, i, [&](Mlp& mlp) {
      for (Linear* linear : {&mlp.up, &mlp.down}) linear->kept_norms = index++;
    });
  }
  UnitGroup own = unit.group();
  if (block.experts && !block.experts->units.empty()) own.count = block.experts->units.front().first - own.first;
  block_units_.push_back(own);
  return block;
}

void Decoder::declare_whole(UnitBuilder& unit, Block& block) const {
  const ModelConfig& c = shape_.config;
  const auto declare = [&](const LinearShape& s) {
    return Linear::declare(unit, s.parts, s.in, s.bias, s.std, shape_.adapters);
  };
  const LayerShapes heads = attention_shapes(block.layer);
  block.attention.whole().qkv = declare(heads.first);
  if (c.latent.exist()) declare_latent(unit, block.attention.whole(), block.layer);
  block.attention.whole().projection = declare(heads.last);
  declare_sinks(unit, block.attention.whole(), block.layer);
  if (block.experts) return declare_expert_blocks(unit, *block.experts, block.layer);
  const LayerShapes mlp = mlp_shapes(block.layer);
  block.mlp.whole().up = declare(mlp.first);
  block.mlp.whole().down = declare(mlp.last);
}

void Decoder::declare_split(UnitBuilder& unit, Block& block) const {
  LLMTRAIN_CHECK(!shape_.config.latent.exist(), "latent attention is not split");
  const TensorShare& share = shape_.tensor;
  const AdapterRule& rule = shape_.adapters;
  const LayerShapes heads = attention_shapes(block.layer), mlp = mlp_shapes(block.layer);
  const Linear qkv = block.attention.declare_shared(unit, heads.first, heads.last, share, rule);
  const Linear up = block.experts ? Linear() : block.mlp.declare_shared(unit, mlp.first, mlp.last, share, rule);
  const Attention all_heads = block.attention.whole();
  const Mlp all_channels = block.mlp.whole();
  block.attention.blocks.clear();
  block.mlp.blocks.clear();
  each_tensor_block([&](int64_t index) {
    const LinearBlock outputs{LinearBlock::Side::outputs, index, share.blocks};
    const LinearBlock inputs{LinearBlock::Side::inputs, index, share.blocks};
    unit.set_block(index);
    Attention& attention = block.attention.blocks.emplace_back(all_heads);
    attention.shape.heads /= share.blocks;
    attention.shape.kv_heads /= share.blocks;
    attention.shape.first_head = index * attention.shape.heads;
    attention.qkv = Linear::declare_block(unit, heads.first, outputs, qkv, rule);
    attention.projection = Linear::declare_block(unit, heads.last, inputs, block.attention.sum, rule);
    declare_sinks(unit, attention, block.layer);
    if (block.experts) return declare_expert_block(unit, *block.experts, block.layer, index);
    Mlp& own = block.mlp.blocks.emplace_back(all_channels);
    own.up = Linear::declare_block(unit, mlp.first, outputs, up, rule);
    own.down = Linear::declare_block(unit, mlp.last, inputs, block.mlp.sum, rule);
  });
}

/// Declares the sinks of the heads, which may be some of all.
void Decoder::declare_sinks(UnitBuilder& unit, Attention& attention, int layer) const {
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
Attention Decoder::declare_heads(UnitBuilder& unit, int layer) const {
  const ModelConfig& c = shape_.config;
  const double scalar = c.query_pre_attn_scalar > 0 ? c.query_pre_attn_scalar : static_cast<double>(c.head_dim);
  Attention attention;
  attention.layer = layer;
  attention.dropout = c.attention_dropout;
  attention.shape = {c.n_heads,
                     c.n_kv_heads,
                     c.head_dim,
                     c.window_of_layer(layer),
                     static_cast<float>(latent_scale(c) / std::sqrt(scalar)),
                     static_cast<float>(c.attention_softcap)};
  if (!c.qk_norm) return attention;
  const auto declare = [&](const std::string& name, int64_t heads) {
    const int64_t channels = c.qk_norm_whole ? heads * c.head_dim : c.head_dim;
    return Norm::declare(unit, at_layer(name, layer),
                         {NormKind::rmsnorm, c.norm_epsilon, false, c.zero_centered_norm, channels});
  };
  const Norm query = declare(shape_.names.query_norm, c.n_heads), key = declare(shape_.names.key_norm, c.n_kv_heads);
  attention.norms_whole_rows = c.qk_norm_whole;
  attention.query_norm = query.weight;
  attention.key_norm = key.weight;
  attention.norm_epsilon = query.epsilon;
  attention.norm_weight_offset = query.weight_offset;
  return attention;
}

/// Declares what lies between the first matrix of latent attention and its heads.
void Decoder::declare_latent(UnitBuilder& unit, Attention& attention, int layer) const {
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
  const auto linear = [&](const std::string& name, int64_t rows, int64_t rank) {
    return Linear::declare(unit, {part(name, layer, rows)}, rank, false, c.initializer_std, shape_.adapters);
  };
  if (latent.query_rank > 0) {
    latent.query_norm = norm(names.query_low_norm, latent.query_rank);
    latent.query = linear(names.query_high, latent.heads.query_columns(), latent.query_rank);
  }
  latent.key_norm = norm(names.key_low_norm, latent.key_rank);
  latent.keys = linear(names.key_high, latent.heads.key_columns(), latent.key_rank);
}

Decoder::LayerShapes Decoder::attention_shapes(int layer) const {
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
  if (names.qkv.size() == 1) {
    qkv = {part(names.qkv[0], layer, queries + 2 * keys, {queries, keys, keys})};
  } else {
    qkv = {part(names.qkv[0], layer, queries), part(names.qkv[1], layer, keys), part(names.qkv[2], layer, keys)};
  }
  return {{qkv, c.d_model, c.qkv_bias, c.initializer_std},
          {{part(names.projection, layer, c.d_model)}, queries, c.attention_output_bias, shape_.projection_std}};
}

Decoder::LayerShapes Decoder::mlp_shapes(int layer) const {
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

void Decoder::find_head_units() {
  const auto add = [&](const ParamRef& param) {
    if (param.exists() && std::ranges::find(head_units_, param.unit) == head_units_.end()) {
      head_units_.push_back(param.unit);
    }
  };
  if (shape_.config.scores()) {
    add(scalar_head_.weight);
    return add(scalar_head_.bias);
  }
  for (const Head& head : head_.blocks) {
    add(head.linear.weight);
    add(head.linear.a);
    for (const Adapter& adapter : head.linear.adapters) {
      add(adapter.b);
      add(adapter.magnitude);
    }
  }
}

}  // namespace llmtrain
