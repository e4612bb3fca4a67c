#include <fmt/format.h>

#include <algorithm>

#include "models/decoder_layers.hpp"
#include "models/mup.hpp"
#include "models/rope/rope_frequencies.hpp"

namespace llmtrain {

std::string at_layer(const std::string& name, int64_t layer, int64_t expert) {
  return fmt::format(fmt::runtime(name), layer, expert);
}

Norm DecoderShape::declare_norm(UnitBuilder& unit, const std::string& name) const {
  return Norm::declare(unit, name,
                       {config.norm, config.norm_epsilon, config.bias, config.zero_centered_norm, config.d_model});
}

size_t DecoderShape::kept_norms_of(int layer, size_t block) const {
  const ExpertsConfig& e = config.experts;
  const size_t mlps = e.exist() ? 1 + static_cast<size_t>(e.count / tensor.blocks) : 1;
  const size_t matrices = (config.latent.exist() ? 4 : 2) + 2 * mlps;
  const auto own = static_cast<size_t>(tensor.count), layers = static_cast<size_t>(config.n_layers);
  const auto index = static_cast<size_t>(layer);
  return index < layers ? (index * own + block) * matrices : layers * own * matrices + block;
}

void Decoder::declare_units() {
  const ModelConfig& c = shape_.config;
  declare_embedding();
  const LayerDeclarations layers(shape_);
  for (int layer = 0; layer < c.n_layers; ++layer) {
    blocks_.push_back(layers.declare(units_, layer, block_units_.emplace_back()));
  }

  const auto spans = [&](const ParamRef& table) {
    if (table.exists()) units_[static_cast<size_t>(table.unit)].spans_backward = c.ties_head();
  };
  spans(embedding_.table);
  for (const Embedding::TableBlock& block : embedding_.blocks) spans(block.rows);
  UnitBuilder unit(units_, "final", shape_.trained, shape_.quantization);
  if (shape_.final_norm) final_norm_ = shape_.declare_norm(unit, shape_.names.final_norm);
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
  scale_hidden_matrices(units_, c);
  find_backward_end();
  find_head_units();
  if (c.positions != ModelConfig::Positions::rope) return;
  rope_ = make_rope(c);
  if (c.rope_local_theta > 0) local_rope_ = make_local_rope(c);
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
    shape_.each_tensor_block([&](int64_t block) {
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
    return shape_.each_tensor_block([&](int64_t index) { declare_head_block(unit, index, shared); });
  }
  head_.whole().vocabulary = shape_.tokens;
  head_.whole().scale = static_cast<float>(1 / c.logits_scaling);
  head_.whole().softcap = static_cast<float>(c.final_softcap);
  Linear& linear = head_.whole().linear;
  linear.in = c.d_model;
  linear.out = c.vocab_size;
  linear.kept_norms = shape_.kept_norms_of(static_cast<int>(c.n_layers), 0);
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
  head.scale = static_cast<float>(1 / c.logits_scaling);
  head.softcap = static_cast<float>(c.final_softcap);
  head.linear.in = c.d_model;
  head.linear.out = std::min(widest, c.vocab_size - head.first_token);
  head.vocabulary = std::clamp<int64_t>(shape_.tokens - head.first_token, 0, head.linear.out);
  head.linear.kept_norms = shape_.kept_norms_of(static_cast<int>(c.n_layers), own);
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
