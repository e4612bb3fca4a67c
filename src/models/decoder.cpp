#include "models/decoder.hpp"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "core/critic_names.hpp"
#include "kernels/elementwise.hpp"
#include "layers/adapted_linear.hpp"
#include "models/rope_frequencies.hpp"

namespace llmtrain {

namespace {

NormKind kind_of(ModelConfig::Norm norm) {
  return norm == ModelConfig::Norm::layernorm ? NormKind::layernorm : NormKind::rmsnorm;
}

Activation kind_of(ModelConfig::Activation activation) {
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
  }
  throw Error("unknown activation");
}

std::string at_layer(const std::string& name, int layer) { return fmt::format(fmt::runtime(name), layer); }

}  // namespace

Decoder::Decoder(DecoderShape shape, std::vector<UnitSpec> before, const std::string& prefix)
    : shape_(std::move(shape)), units_(std::move(before)) {
  const size_t first = units_.size();
  declare_units();
  for (UnitSpec& unit : std::span(units_).subspan(first)) add_prefix(unit, prefix);
}

void Decoder::declare_units() {
  const ModelConfig& c = shape_.config;
  const DecoderNames& names = shape_.names;
  const auto normal = Initializer::normal(c.initializer_std);

  {
    UnitBuilder unit(units_, "embedding", shape_.trained);
    embedding_.table = unit.matrix(names.embedding + ".weight", c.vocab_size, c.d_model, normal, {});
    if (c.positions == ModelConfig::Positions::learned) {
      embedding_.positions = unit.matrix(names.positions + ".weight", c.max_seq_len, c.d_model, normal, {});
    }
    embedding_.table_adapter = TableAdapter::declare(unit, names.embedding, c.vocab_size, c.d_model, shape_.adapters);
    if (embedding_.positions.exists()) {
      embedding_.positions_adapter =
          TableAdapter::declare(unit, names.positions, c.max_seq_len, c.d_model, shape_.adapters);
    }
    embedding_.dropout = c.dropout;
    embedding_.padding = static_cast<int32_t>(c.pad_token_id);
    embedding_units_ = unit.group();
  }
  for (int layer = 0; layer < c.n_layers; ++layer) blocks_.push_back(declare_block(layer));

  units_[static_cast<size_t>(embedding_.table.unit)].spans_backward = c.ties_head();
  UnitBuilder unit(units_, "final", shape_.trained, shape_.quantization);
  if (shape_.final_norm) final_norm_ = declare_norm(unit, names.final_norm);
  if (c.scores()) {
    scalar_head_.weight = unit.trained({names.score + ".weight", 1, c.d_model, true, normal, {}});
  } else {
    declare_head(unit);
  }
  final_units_ = unit.group();
  find_backward_end();
  head_.vocabulary = shape_.tokens;
  head_.softcap = static_cast<float>(c.final_softcap);
  if (c.positions == ModelConfig::Positions::rope) rope_ = make_rope(c);
}

void Decoder::declare_head(UnitBuilder& unit) {
  const ModelConfig& c = shape_.config;
  const std::string& name = shape_.names.head;
  Linear& linear = head_.linear;
  linear.in = c.d_model;
  linear.out = c.vocab_size;
  linear.kept_norms = static_cast<size_t>(c.n_layers) * linear_layers_of_block;
  if (c.ties_head()) {
    linear.weight = embedding_.table;
  } else {
    linear.weight = unit.matrix(name + ".weight", c.vocab_size, c.d_model, Initializer::normal(c.initializer_std), {});
    linear.quantized = unit.quantized_type(linear.weight);
  }
  if (shape_.adapters) linear.declare_adapters(unit, {{name, c.vocab_size}}, shape_.adapters);
}

void Decoder::acquire_head(ParamStore& params) const {
  params.acquire(head_weight().unit);
  if (head_.linear.a.exists()) params.acquire(head_.linear.a.unit);
}

void Decoder::release_head(ParamStore& params) const {
  if (head_.linear.a.exists()) params.release(head_.linear.a.unit);
  params.release(head_weight().unit);
}

void Decoder::find_backward_end() {
  const auto layers = static_cast<int>(blocks_.size());
  const auto is_trained = [&](int layer) {
    const UnitGroup& group = block_units(layer);
    const auto first = units_.begin() + group.first;
    return std::any_of(first, first + group.count, [](const UnitSpec& unit) { return unit.trained; });
  };
  while (backward_end_ < layers && !embedding_.is_trained() && !is_trained(backward_end_)) ++backward_end_;
}

bool Decoder::has_final_gradient() const {
  return backward_end_ < static_cast<int>(blocks_.size()) || final_norm_.is_trained();
}

LinearPart Decoder::part(const std::string& name, int layer, int64_t rows) const {
  return {at_layer(name, layer), rows, shape_.names.transposed_linear_layers};
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
  block.attention = declare_attention(unit, layer);
  block.mlp = declare_mlp(unit, layer);
  size_t index = static_cast<size_t>(layer) * linear_layers_of_block;
  for (Linear* linear : {&block.attention.qkv, &block.attention.projection, &block.mlp.up, &block.mlp.down}) {
    linear->kept_norms = index++;
  }
  block_units_.push_back(unit.group());
  return block;
}

Attention Decoder::declare_attention(UnitBuilder& unit, int layer) const {
  const ModelConfig& c = shape_.config;
  const DecoderNames& names = shape_.names;
  const int64_t queries = c.n_heads * c.head_dim, keys = c.n_kv_heads * c.head_dim;
  const double scalar = c.query_pre_attn_scalar > 0 ? c.query_pre_attn_scalar : static_cast<double>(c.head_dim);
  Attention attention;
  attention.layer = layer;
  attention.dropout = c.attention_dropout;
  attention.shape = {c.n_heads,
                     c.n_kv_heads,
                     c.head_dim,
                     c.window_of_layer(layer),
                     static_cast<float>(1.0 / std::sqrt(scalar)),
                     static_cast<float>(c.attention_softcap)};
  if (c.qk_norm) {
    const NormShape norm{NormKind::rmsnorm, c.norm_epsilon, false, c.zero_centered_norm, c.head_dim};
    const Norm query = Norm::declare(unit, at_layer(names.query_norm, layer), norm);
    const Norm key = Norm::declare(unit, at_layer(names.key_norm, layer), norm);
    attention.query_norm = query.weight;
    attention.key_norm = key.weight;
    attention.norm_epsilon = query.epsilon;
    attention.norm_weight_offset = query.weight_offset;
  }
  std::vector<LinearPart> qkv;
  if (names.qkv.size() == 1) {
    qkv = {part(names.qkv[0], layer, queries + 2 * keys)};
  } else {
    qkv = {part(names.qkv[0], layer, queries), part(names.qkv[1], layer, keys), part(names.qkv[2], layer, keys)};
  }
  attention.qkv = Linear::declare(unit, qkv, c.d_model, c.qkv_bias, c.initializer_std, shape_.adapters);
  attention.projection = Linear::declare(unit, {part(names.projection, layer, c.d_model)}, queries,
                                         c.attention_output_bias, shape_.projection_std, shape_.adapters);
  return attention;
}

Mlp Decoder::declare_mlp(UnitBuilder& unit, int layer) const {
  const ModelConfig& c = shape_.config;
  const DecoderNames& names = shape_.names;
  std::vector<LinearPart> up = {part(names.up, layer, c.d_ff)};
  if (c.gated() && names.gate.empty()) {
    up.front().rows = 2 * c.d_ff;
  } else if (c.gated()) {
    up.insert(up.begin(), part(names.gate, layer, c.d_ff));
  }
  Mlp mlp;
  mlp.activation = kind_of(c.activation);
  mlp.up = Linear::declare(unit, up, c.d_model, c.mlp_bias, c.initializer_std, shape_.adapters);
  mlp.down = Linear::declare(unit, {part(names.down, layer, c.d_model)}, c.d_ff, c.mlp_bias, shape_.projection_std,
                             shape_.adapters);
  return mlp;
}

void Decoder::plan(Arena& arena, const PassPlan& passes) {
  const ModelConfig& c = shape_.config;
  const auto [compute, max_rows, training, recompute, longest, context, blocks] = passes;
  const auto layers = static_cast<int>(blocks_.size());
  planned_rows_ = max_rows;
  shared_layers_ = training ? backward_end_ : layers;
  saved_.resize(static_cast<size_t>(layers - std::max(shared_layers_ - 1, 0)));
  for (Block& block : blocks_) {
    const bool plain = compute != DType::f32 && block.attention.dropout == 0;
    block.attention.shape.longest = plain ? longest : 0;
    block.attention.context = context;
    block.attention.key_copies = std::max<int64_t>(blocks / c.n_kv_heads, 1);
  }
  int64_t scratch = embedding_.scratch_bytes(compute, max_rows, c.d_model);
  int64_t workspace = embedding_.workspace_bytes(compute, max_rows, c.d_model, training);
  if (!c.scores()) scratch = std::max(scratch, head_.scratch_bytes(compute, max_rows));
  if (!c.scores()) workspace = std::max(workspace, head_.workspace_bytes(compute, max_rows, training));
  for (size_t slot = 0; slot < saved_.size(); ++slot) {
    const size_t layer = blocks_.size() - saved_.size() + slot;
    plan_kept(arena, blocks_[layer], saved_[slot], compute, max_rows, recompute, fmt::format("block.{}", layer));
  }
  for (size_t layer = 0; layer < blocks_.size(); ++layer) {
    scratch = std::max(scratch, blocks_[layer].scratch_bytes(compute, max_rows, recompute));
    workspace = std::max(workspace, blocks_[layer].workspace_bytes(compute, max_rows, training));
  }
  arena.reserve_scratch(scratch);
  arena.reserve_workspace(workspace);
  arena.add(output_, MemoryCategory::activations, "output", DType::f32, {max_rows, c.d_model});
  arena.add(hidden_, MemoryCategory::activations, "hidden", compute, {max_rows, c.d_model});
  if (training) arena.add(gradient_, MemoryCategory::activations, "gradient", DType::f32, {max_rows, c.d_model});
  if (shape_.final_norm) {
    plan_kept(arena, final_norm_, final_saved_, compute, max_rows, Recompute::none, "final_norm");
  }
  rope_.plan(arena, training ? context * max_rows
                             : std::max(context * max_rows, longest));  // a batch can hold a part of a document
  const auto scale = static_cast<float>(c.embedding_scale);
  embedding_.scale = rounded_to(compute, scale);
}

void Decoder::plan_cache(Arena& arena, KvCache& cache, DType compute, int64_t sequences, int64_t positions) const {
  const ModelConfig& c = shape_.config;
  cache.plan(arena, c.n_layers, compute, sequences, positions, 2 * c.n_kv_heads * c.head_dim);
  cache.norms.resize(blocks_.size() * linear_layers_of_block + 1);
  const auto add_norms = [&](const Linear& layer) {
    if (!layer.has_magnitudes()) return;
    arena.add(cache.norms[layer.kept_norms], MemoryCategory::activations, "norms", DType::f32, {layer.out});
  };
  for (const Block& block : blocks_) {
    for (const Linear* layer : block.linear_layers()) add_norms(*layer);
  }
  add_norms(head_.linear);
  cache.forget_norms();
}

void Decoder::start(Stream& stream) { rope_.start(stream); }

void Decoder::forward(Context& ctx, const Batch* batch) {
  const int layers = static_cast<int>(blocks_.size());
  embedding_units_.acquire(ctx.params);
  block_units(0).prefetch(ctx.params);
  if (batch != nullptr) {
    embedding_.forward(ctx, *batch, first_rows(saved(0).input, batch->tokens));
    if (ctx.rows != nullptr) {
      rope_.prepare(ctx.rows->whole(), ctx.rows->first_row(), ctx.stream);
    } else {
      rope_.prepare(*batch, 0, ctx.stream);
    }
  }
  embedding_units_.release(ctx.params);
  for (int layer = 0; layer < layers; ++layer) {
    const bool last = layer + 1 == layers;
    block_units(layer).acquire(ctx.params);
    if (!last) block_units(layer + 1).prefetch(ctx.params);
    if (batch != nullptr) {
      // If the next block has the same slot of activations (as in evaluation), the output is first written to a
      // separate buffer, since it is the next block's input.
      const bool shares = layer + 1 < shared_layers_;
      const Tensor output = first_rows(last || shares ? output_ : saved(layer + 1).input, batch->tokens);
      blocks_[static_cast<size_t>(layer)].forward(ctx, *batch, output, rope_, saved(layer));
      if (shares) cast(first_rows(saved(layer).input, batch->tokens), output, ctx.stream);
    }
    block_units(layer).release(ctx.params);
  }
  if (!shape_.final_norm) {
    if (batch != nullptr) cast(first_rows(hidden_, batch->tokens), first_rows(output_, batch->tokens), ctx.stream);
    return;
  }
  final_norm_.acquire(ctx.params);
  if (batch != nullptr) {
    final_norm_.forward(ctx, first_rows(hidden_, batch->tokens), first_rows(output_, batch->tokens), final_saved_);
  }
  final_norm_.release(ctx.params);
}

void Decoder::score_rows(Context& ctx, const Batch& batch, const TokenStatistics& statistics) const {
  const Tensor hidden = first_rows(hidden_, batch.tokens);
  if (shape_.config.scores()) {
    if (!statistics.logp.empty()) scalar_head_.forward(ctx, hidden, batch.loss_weights, statistics.logp);
  } else {
    head_.forward(ctx, batch, hidden, statistics);
  }
}

void Decoder::score(Context& ctx, const Batch* batch, const TokenStatistics& statistics) {
  acquire_head(ctx.params);
  if (batch != nullptr) score_rows(ctx, *batch, statistics);
  release_head(ctx.params);
}

void Decoder::score_and_differentiate(Context& ctx, const Batch* batch, const TokenStatistics& statistics,
                                      const TokenCotangents& cotangents) {
  const auto layers = static_cast<int>(blocks_.size());
  acquire_head(ctx.params);
  if (backward_end_ < layers) block_units(layers - 1).prefetch(ctx.params);
  if (batch != nullptr) {
    // The gradient of a block of rows overwrites the rows, which are not read again.
    const Tensor hidden = first_rows(hidden_, batch->tokens);
    const Tensor dhidden = has_final_gradient() ? hidden : Tensor();
    if (shape_.config.scores()) {
      score_rows(ctx, *batch, statistics);
      scalar_head_.backward(ctx, dhidden, hidden, cotangents.logp);
    } else {
      head_.forward_backward(ctx, *batch, dhidden, hidden, statistics, cotangents);
    }
  }
  release_head(ctx.params);
}

void Decoder::backward(Context& ctx, const Batch* batch) {
  ParamStore& params = ctx.params;
  const int64_t n = batch != nullptr ? batch->tokens : 0;
  const Tensor dx = first_rows(gradient_, n);
  if (has_final_gradient() && shape_.final_norm) {
    final_norm_.acquire(params);
    if (batch != nullptr)
      final_norm_.backward(ctx, dx, first_rows(hidden_, n), first_rows(output_, n), final_saved_, false);
    final_norm_.release(params);
  } else if (has_final_gradient() && batch != nullptr) {
    cast(dx, first_rows(hidden_, n), ctx.stream);
  }
  final_units_.reduce(params);
  const int end = backward_end_;
  for (int layer = static_cast<int>(blocks_.size()) - 1; layer >= end; --layer) {
    block_units(layer).acquire(params);
    if (layer > end) block_units(layer - 1).prefetch(params);  // prefetched here except for the last block
    if (batch != nullptr) {
      blocks_[static_cast<size_t>(layer)].backward(ctx, *batch, dx, rope_, saved(layer), input_gradient(layer));
    } else {
      block_units(layer).join_reductions(params);
    }
    block_units(layer).release(params);
    // The next block waits for these weights, but nothing waits for the sums soon: transfers run in the order of their
    // start.
    if (layer > end + 1) block_units(layer - 2).prefetch(params);
    block_units(layer).reduce(params);
  }
  if (embedding_.is_trained()) {
    if (embedding_.has_adapters()) embedding_units_.acquire(params);
    if (batch != nullptr) embedding_.backward(ctx, *batch, dx, shape_.config.ties_head());
    if (embedding_.has_adapters()) embedding_units_.release(params);
  }
  embedding_units_.reduce(params);
}

void Decoder::set_magnitudes(ParamStore& params, Stream& stream) const {
  bool any = false;
  for (const Block& block : blocks_) {
    const UnitGroup& units = block_units(block.layer);
    units.acquire(params);
    for (const Linear* layer : block.linear_layers()) {
      if (!layer->has_magnitudes()) continue;
      llmtrain::set_magnitudes(*layer, params, stream);
      any = true;
    }
    units.release(params);
  }
  if (head_.linear.has_magnitudes()) {
    acquire_head(params);
    llmtrain::set_magnitudes(head_.linear, params, stream);
    release_head(params);
    any = true;
  }
  if (!any) return;
  params.round_masters();
  params.publish_weights();
}

/// Gathers the hidden states of these rows. Rows move to the front in ascending order, so that no move overwrites a
/// later source.
Tensor Decoder::gather(std::span<const int64_t> rows, Stream& stream) const {
  const auto count = static_cast<int64_t>(rows.size());
  if (rows.back() - rows.front() + 1 == count) return hidden_.rows(rows.front(), count);
  for (int64_t i = 0; i < count; ++i) {
    const Tensor to = hidden_.rows(i, 1), from = hidden_.rows(rows[static_cast<size_t>(i)], 1);
    if (to.data != from.data) copy_on_device(to.data, from.data, to.bytes(), stream);
  }
  return hidden_.rows(0, count);
}

void Decoder::logits(Context& ctx, const Batch* batch, std::span<const int64_t> rows, const Tensor& out) {
  LLMTRAIN_CHECK(!shape_.config.scores(), "a model that scores has no logits");
  acquire_head(ctx.params);
  if (batch != nullptr) head_.logits(ctx, out, gather(rows, ctx.stream));
  release_head(ctx.params);
}

double Decoder::flops_per_token(int64_t sequence_length) const {
  const ModelConfig& c = shape_.config;
  const double trained = scalar_head_.weight.is_trained() ? 1 : 0, final = has_final_gradient() ? 1 : 0;
  double flops = c.scores() ? 2 * static_cast<double>(c.d_model) * (1 + trained + final)
                            : head_.linear.product_flops(has_final_gradient());
  const double of_head_rows = 4 * static_cast<double>(c.n_heads * c.head_dim);  // scores and sums, per visible key
  for (int layer = 0; layer < static_cast<int>(blocks_.size()); ++layer) {
    const Block& block = blocks_[static_cast<size_t>(layer)];
    const bool reached = layer >= backward_end_;
    const bool input = reached && input_gradient(layer);
    const int64_t window = c.window_of_layer(layer);
    const auto visible = static_cast<double>(window > 0 ? std::min(window, sequence_length) : sequence_length);
    flops += block.product_flops(input) + of_head_rows * visible * (reached && block.gradients(input).heads ? 3 : 1);
  }
  return flops;
}

}  // namespace llmtrain
