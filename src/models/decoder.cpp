#include "models/decoder.hpp"

#include <fmt/format.h>

#include <utility>

#include "core/critic_names.hpp"
#include "kernels/elementwise.hpp"
#include "layers/adapted_linear.hpp"

namespace llmtrain {

namespace {

template <class F>
void each_linear(std::span<const Mlp> mlps, const F& f) {
  for (const Mlp& mlp : mlps) {
    f(mlp.up);
    f(mlp.down);
  }
}

/// Calls f(linear) for the matrices of a layer, without those of its experts.
template <class F>
void each_common_linear(const Block& block, const F& f) {
  f(block.attention.low);
  for (const Attention& attention : block.attention.blocks) {
    f(attention.qkv);
    if (attention.latent && attention.latent->query.weight.exists()) f(attention.latent->query);
    if (attention.latent) f(attention.latent->keys);
    f(attention.projection);
  }
  if (!block.experts) return each_linear(block.mlp.blocks, f);
  if (block.experts->shared) each_linear(block.experts->shared->blocks, f);
}

/// Calls f(linear) for all of them.
template <class F>
void each_linear(const Block& block, const F& f) {
  each_common_linear(block, f);
  if (block.experts) each_linear(block.experts->mlps, f);
}

/// The part of a block whose saved tensors depend on whether it has experts.
struct MlpOfBlock {
  const Block& block;

  template <class F>
  void visit_saved(BlockSaved& s, DType compute, int64_t rows, const F& f) const {
    block.visit_saved_of_mlp(s, compute, rows, f);
  }
};

}  // namespace

Decoder::Decoder(DecoderShape shape, std::vector<UnitSpec> before, const std::string& prefix)
    : shape_(std::move(shape)), units_(std::move(before)) {
  const size_t first = units_.size();
  const TensorShare& share = shape_.tensor;
  if (share.splits() && share.count == share.blocks) tensor_ = std::make_unique<TensorSum>(share, nullptr);
  declare_units();
  for (UnitSpec& unit : std::span(units_).subspan(first)) add_prefix(unit, prefix);
}

void Decoder::acquire_head(ParamStore& params) const {
  for (const int unit : head_units_) params.acquire(unit);
}

void Decoder::release_head(ParamStore& params) const {
  for (auto unit = head_units_.rbegin(); unit != head_units_.rend(); ++unit) params.release(*unit);
}

void Decoder::enter(Context& ctx) const {
  LLMTRAIN_CHECK(tensor_ != nullptr || !shape_.tensor.splits(), "the ranks that have the other blocks are known");
  LLMTRAIN_CHECK(experts_ != nullptr || shape_.experts.count == shape_.experts.blocks,
                 "the ranks that have the other experts are known");
  ctx.tensor = tensor_.get();
  ctx.experts = experts_.get();
}

void Decoder::find_backward_end() {
  const auto layers = static_cast<int>(blocks_.size());
  const auto is_trained = [&](int layer) {
    const int next = layer + 1 < layers ? block_units(layer + 1).first : final_units_.first;
    const auto first = units_.begin() + block_units(layer).first, last = units_.begin() + next;
    return std::any_of(first, last, [](const UnitSpec& unit) { return unit.trained; });
  };
  while (backward_end_ < layers && !embedding_.is_trained() && !is_trained(backward_end_)) ++backward_end_;
}

bool Decoder::has_final_gradient() const {
  return backward_end_ < static_cast<int>(blocks_.size()) || final_norm_.is_trained();
}

void Decoder::plan(Arena& arena, const PassPlan& passes) {
  const ModelConfig& c = shape_.config;
  const auto [compute, max_rows, training, recompute, longest, context, blocks] = passes;
  const auto layers = static_cast<int>(blocks_.size());
  planned_rows_ = max_rows / std::max<int64_t>(blocks / context, 1);
  shared_layers_ = training ? backward_end_ : layers;
  saved_.resize(static_cast<size_t>(layers - std::max(shared_layers_ - 1, 0)));
  for (Block& block : blocks_) {
    block.attention.groups = block.mlp.groups = std::max<int64_t>(blocks / context, 1);
    if (block.experts) block.experts->set_groups(block.mlp.groups);
    for (Attention& attention : block.attention.blocks) {
      const bool plain = compute != DType::f32 && attention.dropout == 0 && !attention.sinks.exists();
      attention.shape.longest = plain ? longest : 0;
      attention.context = context;
      attention.key_copies = std::max<int64_t>(blocks / attention.shape.kv_heads, 1);
    }
  }
  int64_t scratch = embedding_.scratch_bytes(compute, max_rows, c.d_model, shape_.tensor);
  int64_t workspace = embedding_.workspace_bytes(compute, max_rows, c.d_model, training);
  if (!c.scores()) scratch = std::max(scratch, head_.scratch_bytes(compute, max_rows));
  if (!c.scores()) workspace = std::max(workspace, head_.workspace_bytes(compute, max_rows, training));
  for (size_t slot = 0; slot < saved_.size(); ++slot) {
    const size_t layer = blocks_.size() - saved_.size() + slot;
    plan_kept(arena, blocks_[layer], saved_[slot], compute, max_rows, recompute, fmt::format("block.{}", layer));
  }
  plan_other_kind(arena, passes);
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
  for (Rope* rope : {&rope_, &local_rope_}) {  // a batch can hold a part of a document
    rope->plan(arena, training ? context * max_rows : std::max(context * max_rows, longest));
  }
  const auto scale = static_cast<float>(c.embedding_scale);
  embedding_.scale = rounded_to(compute, scale);
}

/// Layers that share their saved tensors may be dense or have experts: the tensors are those of both kinds.
void Decoder::plan_other_kind(Arena& arena, const PassPlan& passes) {
  if (shared_layers_ == 0) return;
  const Block& last = blocks_[static_cast<size_t>(shared_layers_ - 1)];
  for (int layer = 0; layer + 1 < shared_layers_; ++layer) {
    const Block& block = blocks_[static_cast<size_t>(layer)];
    if (block.experts.has_value() == last.experts.has_value()) continue;
    return plan_kept(arena, MlpOfBlock{block}, saved_.front(), passes.compute, passes.max_rows, passes.recompute,
                     fmt::format("block.{}", layer));
  }
}

void Decoder::plan_cache(Arena& arena, KvCache& cache, DType compute, int64_t sequences, int64_t positions) const {
  const ModelConfig& c = shape_.config;
  const auto& [blocks, first, own] = shape_.tensor;
  cache.blocks = blocks;
  cache.plan(arena, c.n_layers * own, compute, sequences, positions, 2 * c.n_kv_heads / blocks * c.head_dim);
  cache.norms.resize(shape_.kept_norms_of(static_cast<int>(c.n_layers), head_.blocks.size()));
  const auto add_norms = [&](const Linear& layer) {
    if (!layer.has_magnitudes()) return;
    arena.add(cache.norms[layer.kept_norms], MemoryCategory::activations, "norms", DType::f32, {layer.out});
  };
  for (const Block& block : blocks_) each_linear(block, add_norms);
  for (const Head& head : head_.blocks) add_norms(head.linear);
  cache.forget_norms();
}

void Decoder::start(Stream& stream) {
  for (const Rope* rope : {&rope_, &local_rope_}) rope->start(stream);
}

const Norm* Decoder::joined_norm(const ParamStore& params, size_t layer) const {
  const bool last = layer + 1 == blocks_.size();
  if (!blocks_[layer].pre_norm || (last && !shape_.final_norm)) return nullptr;
  const Norm& norm = last ? final_norm_ : blocks_[layer + 1].norm1;
  return norm.is_whole(params) ? &norm : nullptr;
}

void Decoder::forward(Context& ctx, const Batch* batch) {
  const int layers = static_cast<int>(blocks_.size());
  enter(ctx);
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
  JoinedNorms joined{hidden_};
  for (int layer = 0; layer < layers; ++layer) {
    const bool last = layer + 1 == layers;
    block_units(layer).acquire(ctx.params);
    prefetch_experts(ctx.params, layer, false);
    if (!last) block_units(layer + 1).prefetch(ctx.params);
    Block& block = blocks_[static_cast<size_t>(layer)];
    if (batch != nullptr) {
      // If the next block has the same slot of activations (as in evaluation), the output is first written to a
      // separate buffer, since it is the next block's input.
      const bool shares = layer + 1 < shared_layers_;
      const Tensor output = first_rows(last || shares ? output_ : saved(layer + 1).input, batch->tokens);
      joined.next = joined_norm(ctx.params, static_cast<size_t>(layer));
      joined.next_saved = last ? &final_saved_ : &saved(layer + 1).norm1;
      block.forward(ctx, *batch, output, rope_of(layer), saved(layer), pass_, joined);
      joined.has_input = joined.next != nullptr;
      if (shares) cast(first_rows(saved(layer).input, batch->tokens), output, ctx.stream);
    } else if (block.experts) {
      block.experts->forward_idle(ctx, hidden_.dtype, saved(layer).experts);
    }
    block_units(layer).release(ctx.params);
  }
  if (!shape_.final_norm) {
    if (batch != nullptr) cast(first_rows(hidden_, batch->tokens), first_rows(output_, batch->tokens), ctx.stream);
    return;
  }
  final_norm_.acquire(ctx.params);
  if (batch != nullptr && !joined.has_input) {
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
  enter(ctx);
  acquire_head(ctx.params);
  if (batch != nullptr) score_rows(ctx, *batch, statistics);
  release_head(ctx.params);
}

void Decoder::score_and_differentiate(Context& ctx, const Batch* batch, const TokenStatistics& statistics,
                                      const TokenCotangents& cotangents) {
  const auto layers = static_cast<int>(blocks_.size());
  enter(ctx);
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
  enter(ctx);
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
    prefetch_experts(params, layer, true);
    if (layer > end) block_units(layer - 1).prefetch(params);  // prefetched here except for the last block
    if (batch != nullptr) {
      blocks_[static_cast<size_t>(layer)].backward(ctx, *batch, dx, rope_of(layer), saved(layer), pass_,
                                                   input_gradient(layer));
    } else {
      const std::optional<Experts>& experts = blocks_[static_cast<size_t>(layer)].experts;
      const bool input = blocks_[static_cast<size_t>(layer)].gradients(input_gradient(layer)).mlp_input;
      if (experts) experts->backward_idle(ctx, hidden_.dtype, saved(layer).experts, input);
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
  const auto set = [&](const Linear& layer) {
    if (!layer.has_magnitudes() || layer.is_term()) return;
    llmtrain::set_magnitudes(layer, params, stream);
    any = true;
  };
  const auto set_of_sum = [&](const auto& split) {
    if (!split.front().last().has_magnitudes()) return;
    llmtrain::set_magnitudes(split.last_blocks(), *tensor_, params, stream);
    any = true;
  };
  for (const Block& block : blocks_) {
    const UnitGroup& units = block_units(block.layer);
    units.acquire(params);
    each_common_linear(block, set);
    if (block.experts)
      block.experts->each_with_weights(params, [&](const Mlp& mlp) { each_linear(std::span(&mlp, 1), set); });
    if (shape_.tensor.splits()) {
      set_of_sum(block.attention);
      if (!block.experts) set_of_sum(block.mlp);
      if (block.experts && block.experts->shared) set_of_sum(*block.experts->shared);
    }
    units.release(params);
  }
  if (head_.front().has_magnitudes()) {
    acquire_head(params);
    for (const Head& head : head_.blocks) set(head.linear);
    release_head(params);
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
  enter(ctx);
  acquire_head(ctx.params);
  if (batch != nullptr) head_.logits(ctx, out, gather(rows, ctx.stream));
  release_head(ctx.params);
}

std::vector<ParamRef> Decoder::router_biases() const {
  std::vector<ParamRef> biases;
  for (const Block& block : blocks_) {
    if (block.experts && block.experts->selection_bias.exists()) biases.push_back(block.experts->selection_bias);
  }
  return biases;
}

double Decoder::flops_per_token(int64_t sequence_length) const {
  const ModelConfig& c = shape_.config;
  const double trained = scalar_head_.weight.is_trained() ? 1 : 0, final = has_final_gradient() ? 1 : 0;
  double flops = c.scores() ? 2 * static_cast<double>(c.outputs() * c.d_model) * (1 + trained + final)
                            : head_.product_flops(has_final_gradient());
  const int64_t value_dim = c.latent.exist() ? c.latent.value : c.head_dim;
  const double of_head_rows = 2 * static_cast<double>(c.n_heads * (c.head_dim + value_dim));  // scores, sums, by key
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
