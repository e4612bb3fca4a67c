#include <fmt/format.h>

#include <algorithm>

#include "core/deck/deck.hpp"
#include "core/deck/layers_codec.hpp"
#include "kernels/attention.hpp"
#include "models/model_config.hpp"
#include "models/models.hpp"
#include "models/mup.hpp"

namespace llmtrain {

namespace {

/// Phi-4 is a Phi-3 with other keys, as its config.json says, too.
struct FamilyCodec : DeckValue<ModelConfig::Family> {
  static ModelConfig::Family parse(std::string_view text, const KeyInfo& info) {
    return DeckValue<ModelConfig::Family>::parse(text == "phi4" ? name_of(ModelConfig::Family::phi3) : text, info);
  }
};

/// "gpt2: layernorm, ... . llama: ... ."
const std::string& family_docs() {
  static const std::string docs = [] {
    std::string text;
    for (size_t i = 0; i < enum_names<ModelConfig::Family>.size(); ++i) {
      const auto family = static_cast<ModelConfig::Family>(i);
      text += fmt::format("{}{}: {}.", text.empty() ? "" : " ", name_of(family), family_entry(family).doc);
    }
    return text + " phi4 is phi3.";
  }();
  return docs;
}

}  // namespace

int64_t ModelConfig::window_of_layer(int64_t layer) const {
  const auto& layers = sliding_window_layers;
  return layers.empty() || std::ranges::binary_search(layers, layer) ? sliding_window : 0;
}

void ModelConfig::visit(DeckKeys& keys) {
  keys.section("model",
               "Describe the decoder, or start from a published one. The family sets every key that is not given.",
               Change::breaks, model_tasks);
  keys.key<FamilyCodec>("family", family, {.doc = family_docs()});
  keys.key("path", path,
           {.doc = "Hugging Face folder of the initial weights (config.json, safetensors). Every other key of this "
                   "section except the dropouts is then read from the model, and may only be given the same value.",
            .automatic = "new weights"});
  keys.key("vocab_size", vocab_size,
           {.unit = "tokens",
            .range = between(1, 1 << 30),
            .doc = "Rows of the embedding. Rows beyond the tokenizer's tokens are padding, which is never sampled; "
                   "fewer rows are an error (with `path` only if the data have a token without a row).",
            .automatic = "the tokenizer's"});
  keys.key("d_model", d_model,
           {.unit = "elements",
            .range = between(1, 1 << 18),
            .doc = "Width of the residual stream.",
            .automatic = "required without path"});
  keys.key("n_layers", n_layers,
           {.range = between(1, 4096), .doc = "Number of blocks.", .automatic = "required without path"});
  keys.key("n_heads", n_heads,
           {.range = between(1, 4096), .doc = "Attention heads of a block.", .automatic = "required without path"});
  keys.key("n_kv_heads", n_kv_heads,
           {.range = between(1, 4096),
            .doc = "Heads of keys and values; fewer than n_heads share them (GQA), and must divide n_heads.",
            .automatic = "n_heads"});
  keys.key("head_dim", head_dim,
           {.unit = "elements",
            .range = between(1, max_head_dim),
            .doc = "Width of a head.",
            .automatic = "d_model / n_heads"});
  keys.key("d_ff", d_ff,
           {.unit = "elements",
            .range = between(1, 1 << 20),
            .doc = "Width inside the MLP; gated activations have two matrices of it.",
            .automatic = "the family's"});
  keys.key("max_seq_len", max_seq_len,
           {.unit = "tokens",
            .range = between(1, 1 << 24),
            .doc = "Maximum sequence length of the model: the rows of the table of learned positions, and the base "
                   "length of dynamic rope_scaling.",
            .automatic = "batch.sequence_length"});
  keys.key("norm", norm, {.doc = "Normalisation.", .automatic = "the family's"});
  keys.key<Fp32Number>("norm_epsilon", norm_epsilon, {.range = above(0), .doc = "Added to the variance."});
  keys.key("zero_centered_norm", zero_centered_norm,
           {.doc = "Norms multiply by 1 + weight, and weights start at 0.", .automatic = "the family's"});
  keys.key("pre_norm", pre_norm, {.doc = "Norms before attention and MLP; false: after the residual sum."});
  keys.key("sandwich_norm", sandwich_norm,
           {.doc = "With pre_norm: one more norm on the outputs of attention and MLP.", .automatic = "the family's"});
  keys.key("input_norm", input_norm,
           {.doc = "Norms before attention and MLP; false, with sandwich_norm: only on their outputs.",
            .automatic = "the family's"});
  keys.key("parallel_residual", parallel_residual,
           {.doc = "Attention and MLP read the same residual stream, and both outputs are added to it.",
            .automatic = "the family's"});
  keys.key(
      "shared_norm", shared_norm,
      {.doc = "With parallel_residual: attention and MLP read the output of one norm.", .automatic = "the family's"});
  keys.key<Fp32Number>("residual_multiplier", residual_multiplier,
                       {.range = above(0),
                        .doc = "Factor on the outputs of attention and MLP, before they are added.",
                        .automatic = "the family's"});
  keys.key("qk_norm", qk_norm,
           {.doc = "An RMSNorm over each head's query and key, before rope.", .automatic = "the family's"});
  keys.key("qk_norm_whole", qk_norm_whole,
           {.doc = "With qk_norm: the norms are over all heads together.", .automatic = "the family's"});
  keys.key("activation", activation,
           {.doc = "Activation function of the MLP; swiglu, geglu and geglu_tanh multiply it with a second projection, "
                   "swiglu_oai with the second projection plus 1, and experts may limit both.",
            .automatic = "the family's"});
  keys.key(
      "positions", positions,
      {.doc = "A learned table added to the embedding, or rotation of queries and keys.", .automatic = "the family's"});
  keys.key<Fp32Number>("rope_theta", rope_theta, {.range = above(0), .doc = "Base of the wavelengths of rope."});
  keys.key("rope_scaling", rope_scaling,
           {.doc = "Stretches rope's wavelengths, under the names of Hugging Face, as in: llama3, factor 8, "
                   "low_freq_factor 1, high_freq_factor 4, original_max_position_embeddings 8192."});
  keys.key<Fp32Number>("rope_local_theta", rope_local_theta,
                       {.range = at_least(0),
                        .doc = "Base of rope, without rope_scaling, in layers with the sliding window; 0: that of the "
                               "others.",
                        .automatic = "the family's"});
  keys.key<LayersCodec>("no_rope_layers", no_rope_layers,
                        {.doc = "Layers without positions, counted from 0, as in 3, 7, 8-11; an empty list: none.",
                         .automatic = "the family's"});
  keys.key("partial_rotary_factor", partial_rotary_factor,
           {.range = {.min = 0, .max = 1, .open_min = true},
            .doc = "Fraction of a head's elements that rope rotates.",
            .automatic = "the family's"});
  keys.key("bias", bias, {.doc = "Biases in linear layers and layernorms.", .automatic = "the family's"});
  keys.key("qkv_bias", qkv_bias, {.doc = "Biases of queries, keys and values.", .automatic = "bias, or the family's"});
  keys.key("attention_output_bias", attention_output_bias,
           {.doc = "Bias of the output projection of attention.", .automatic = "bias, or the family's"});
  keys.key("mlp_bias", mlp_bias, {.doc = "Biases in the MLP.", .automatic = "bias, or the family's"});
  keys.key("tie_embeddings", tie_embeddings,
           {.doc = "The head uses the matrix of the embedding.", .automatic = "the family's"});
  keys.key<Fp32Number>("embedding_scale", embedding_scale,
                       {.range = above(0),
                        .doc = "Factor on the embedding's output, rounded to the compute dtype.",
                        .automatic = "the family's"});
  keys.key("pad_token_id", pad_token_id,
           {.range = between(-1, (1 << 30) - 1),
            .doc = "Token whose row of the embedding gets no gradient where the input has it, also in a text "
                   "(padding_idx of Transformers); the head's gradient stays. -1: none. With model.path it is that of "
                   "config.json, where the family has it.",
            .change = Change::applies,
            .tasks = training_tasks});
  keys.key<Fp32Number>(
      "query_pre_attn_scalar", query_pre_attn_scalar,
      {.range = above(0), .doc = "Attention scores are divided by its square root.", .automatic = "head_dim"});
  keys.key("attention_sinks", attention_sinks,
           {.doc = "Each head has a learned score without a value, which takes part in the softmax.",
            .automatic = "the family's"});
  keys.key<Fp32Number>(
      "attention_softcap", attention_softcap,
      {.range = at_least(0), .doc = "Attention scores s become c tanh(s / c); 0 = off.", .automatic = "the family's"});
  keys.key<Fp32Number>(
      "final_softcap", final_softcap,
      {.range = at_least(0), .doc = "Logits x become c tanh(x / c); 0 = off.", .automatic = "the family's"});
  keys.key<Fp32Number>("logits_scaling", logits_scaling,
                       {.range = above(0), .doc = "Logits are divided by it.", .automatic = "the family's"});
  keys.key(
      "mup_base_width", mup_base_width,
      {.unit = "channels",
       .range = between(0, 1 << 20),
       .doc = "Width for which learning rate and initial values were chosen: those of hidden matrices are scaled "
              "from it to d_model, scores and logits as well (muP); with model.path the learning rates alone. 0: off.",
       .tasks = training_tasks});
  keys.key<Fp32Number>("dropout", dropout,
                       {.range = from_below(0, 1),
                        .doc = "Dropout probability after the embedding and on each residual branch.",
                        .change = Change::applies,
                        .tasks = training_tasks});
  keys.key<Fp32Number>("attention_dropout", attention_dropout,
                       {.range = from_below(0, 1),
                        .doc = "Dropout probability on the attention weights.",
                        .change = Change::applies,
                        .tasks = training_tasks});
  keys.key<Fp32Number>("initializer_std", initializer_std,
                       {.range = at_least(0), .doc = "Standard deviation of initial matrices."});
  keys.key("sliding_window", sliding_window,
           {.unit = "tokens",
            .range = between(0, 1 << 24),
            .doc = "Length of the attention window: a token attends to itself and the window - 1 tokens before it; 0 = "
                   "all tokens before it.",
            .automatic = "the family's"});
  keys.key<LayersCodec>(
      "sliding_window_layers", sliding_window_layers,
      {.doc = "Layers with the window, counted from 0, as in 0, 2, 8-11; an empty list means all layers.",
       .automatic = "the family's"});
  experts.visit(keys);
  latent.visit(keys);
}

namespace {

/// Sets the keys that the deck leaves to the family.
class FamilyDefaults {
 public:
  explicit FamilyDefaults(DeckLoader& deck) : deck_(deck) {}

  template <class T>
  void set(std::string_view key, T& field, T value) {
    if (deck_.given(key)) return;
    field = value;
    deck_.set(key, Origin::family);
  }

 private:
  DeckLoader& deck_;
};

}  // namespace

void ModelConfig::mark_unused(DeckLoader& deck) const {
  if (positions != Positions::rope) {
    for (const char* key : {"model.rope_theta", "model.rope_scaling", "model.rope_local_theta", "model.no_rope_layers",
                            "model.partial_rotary_factor"}) {
      deck.unused(key, "no effect with positions = learned");
    }
  }
  if (sliding_window == 0) {
    for (const char* key : {"model.sliding_window_layers", "model.rope_local_theta"}) {
      deck.unused(key, "no effect with sliding_window = 0");
    }
  }
  if (!parallel_residual) deck.unused("model.shared_norm", "no effect with parallel_residual = false");
  if (!qk_norm) deck.unused("model.qk_norm_whole", "no effect with qk_norm = false");
  experts.mark_unused(deck);
  if (experts.exist() && activation != Activation::swiglu_oai) {
    deck.unused("model.expert_limit", "no effect without activation = swiglu_oai");
  }
  latent.mark_unused(deck);
}

void ModelConfig::take_over(DeckLoader& deck, const ModelConfig& loaded) {
  constexpr std::string_view of_the_deck[] = {"path", "dropout", "attention_dropout", "mup_base_width"};
  ModelConfig whole = loaded;
  whole.mup_base_width = mup_base_width;
  whole.path = path;
  whole.dropout = dropout;
  whole.attention_dropout = attention_dropout;
  DeckKeys mine, theirs;
  visit(mine);
  whole.visit(theirs);
  for (size_t i = 0; i < mine.keys().size(); ++i) {
    const DeckKeys::Key& key = mine.keys()[i];
    const std::string name = key.full_name();
    if (std::ranges::find(of_the_deck, key.name) != std::end(of_the_deck)) continue;
    const std::string value = theirs.keys()[i].print();
    if (!deck.given(name)) {
      deck.set(name, Origin::automatic, "config.json of model.path");
    } else if (deck.sound({name}) && key.print() != value) {
      deck.fail(name, fmt::format("is {} in {}/config.json; remove the key", value, path));
    }
  }
  *this = whole;
}

void ModelConfig::drop_dropout(DeckLoader& deck, const std::string& why) {
  if (dropout != 0) deck.unused("model.dropout", why);
  if (attention_dropout != 0) deck.unused("model.attention_dropout", why);
  dropout = attention_dropout = 0;
}

void ModelConfig::resolve(DeckLoader& deck, int64_t sequence_length, const ModelConfig* loaded,
                          std::optional<Head> wanted) {
  if (wanted) head = *wanted;
  if (loaded != nullptr) {
    take_over(deck, *loaded);
    check_mup(deck, *this);
    if (wanted && *wanted != Head::language) head = *wanted;
    mark_unused(deck);
    return check(deck, sequence_length);
  }
  if (deck.given("model.path")) return;  // the error of the folder has been reported
  deck.set("model.path", Origin::unused, "new weights");
  for (const char* key : {"model.d_model", "model.n_layers", "model.n_heads"}) {
    if (!deck.given(key) && deck.sound({key})) deck.fail(key, "is required, unless model.path is given");
  }
  set_family_defaults(deck);
  mark_unused(deck);
  const auto derive = [&](std::string_view key, int64_t& field, int64_t value, std::string_view from) {
    if (deck.given(key)) return;
    field = value;
    deck.set(key, Origin::automatic, std::string(from));
  };
  derive("model.n_kv_heads", n_kv_heads, n_heads, "n_heads");
  derive("model.max_seq_len", max_seq_len, sequence_length, "batch.sequence_length");
  if (latent.exist()) {
    derive("model.head_dim", head_dim, latent.head_dim(), "qk_nope_head_dim + qk_rope_head_dim");
  } else if (!deck.given("model.head_dim") && n_heads > 0) {
    deck.check(d_model % n_heads == 0, {"model.n_heads", "model.d_model"},
               fmt::format("{} heads do not divide d_model = {}: change one, or give head_dim", n_heads, d_model));
    derive("model.head_dim", head_dim, d_model / n_heads, "d_model / n_heads");
  }
  check_mup(deck, *this);
  set_mup_factors(deck, *this);
  if (mup_base_width == 0 && !deck.given("model.query_pre_attn_scalar")) {
    query_pre_attn_scalar = static_cast<double>(head_dim);
    deck.set("model.query_pre_attn_scalar", Origin::automatic, "head_dim");
  }
  if (!deck.given("model.vocab_size")) deck.set("model.vocab_size", Origin::unused, "the tokenizer's");
  check(deck, sequence_length);
}

void ModelConfig::set_family_defaults(DeckLoader& deck) {
  ModelConfig preset = *this;
  family_entry(family).defaults(preset);
  FamilyDefaults defaults(deck);
  defaults.set("model.norm", norm, preset.norm);
  defaults.set("model.norm_epsilon", norm_epsilon, preset.norm_epsilon);
  defaults.set("model.zero_centered_norm", zero_centered_norm, preset.zero_centered_norm);
  defaults.set("model.sandwich_norm", sandwich_norm, preset.sandwich_norm && pre_norm);
  defaults.set("model.input_norm", input_norm, preset.input_norm || !sandwich_norm);
  defaults.set("model.parallel_residual", parallel_residual, preset.parallel_residual && pre_norm);
  defaults.set("model.shared_norm", shared_norm, preset.shared_norm && parallel_residual);
  defaults.set("model.residual_multiplier", residual_multiplier, preset.residual_multiplier);
  defaults.set("model.qk_norm", qk_norm, preset.qk_norm);
  defaults.set("model.qk_norm_whole", qk_norm_whole, preset.qk_norm_whole && qk_norm);
  defaults.set("model.activation", activation, preset.activation);
  defaults.set("model.positions", positions, preset.positions);
  if (positions == Positions::rope) {
    defaults.set("model.rope_theta", rope_theta, preset.rope_theta);
    defaults.set("model.no_rope_layers", no_rope_layers, preset.no_rope_layers);
    defaults.set("model.partial_rotary_factor", partial_rotary_factor, preset.partial_rotary_factor);
  }
  defaults.set("model.tie_embeddings", tie_embeddings, preset.tie_embeddings);
  defaults.set("model.d_ff", d_ff, preset.d_ff);
  defaults.set("model.embedding_scale", embedding_scale, preset.embedding_scale);
  defaults.set("model.attention_sinks", attention_sinks, preset.attention_sinks);
  defaults.set("model.attention_softcap", attention_softcap, preset.attention_softcap);
  defaults.set("model.final_softcap", final_softcap, preset.final_softcap);
  defaults.set("model.logits_scaling", logits_scaling, preset.logits_scaling);
  defaults.set("model.sliding_window", sliding_window, preset.sliding_window);
  defaults.set("model.sliding_window_layers", sliding_window_layers, preset.sliding_window_layers);
  if (positions == Positions::rope && sliding_window > 0) {
    defaults.set("model.rope_local_theta", rope_local_theta, preset.rope_local_theta);
  }
  router_aux = preset.router_aux;
  const ExpertsConfig& of_family = preset.experts;
  defaults.set("model.n_experts", experts.count, of_family.count);
  if (experts.exist()) {
    defaults.set("model.experts_per_token", experts.per_token, of_family.exist() ? of_family.per_token : 2);
    defaults.set("model.d_ff_expert", experts.d_ff, d_ff);
    const bool whole = family_entry(family).hugging_face.latent;  // DeepSeek's is as wide as a number of the others
    defaults.set("model.d_ff_shared", experts.d_ff_shared, whole ? experts.d_ff : of_family.d_ff_shared);
    defaults.set("model.shared_gate", experts.shared_gate, of_family.shared_gate && experts.d_ff_shared > 0);
    defaults.set("model.norm_topk", experts.norm_topk, of_family.norm_topk);
    defaults.set("model.router_score", experts.score, of_family.score);
    if (activation == Activation::swiglu_oai) {
      defaults.set("model.expert_limit", experts.limit, of_family.limit);
    }
    defaults.set("model.routed_scale", experts.scale, of_family.scale);
    std::vector<int64_t> dense = of_family.dense_layers;
    std::erase_if(dense, [&](int64_t layer) { return layer >= n_layers - 1; });
    defaults.set("model.dense_layers", experts.dense_layers, dense);
    const bool no_dense = experts.dense_layers.empty() && experts.every == 1;
    if (no_dense) defaults.set("model.d_ff", d_ff, experts.d_ff);
    const bool own_count = deck.given("model.n_experts");  // which the family's groups need not divide
    defaults.set("model.n_expert_groups", experts.groups, own_count ? 1 : of_family.groups);
    defaults.set("model.groups_per_token", experts.groups_per_token, own_count ? 1 : of_family.groups_per_token);
  }
  latent.set_defaults(deck, preset.latent);
  const bool bias_given = deck.given("model.bias");
  defaults.set("model.bias", bias, preset.bias);
  defaults.set("model.qkv_bias", qkv_bias, bias_given ? bias : preset.qkv_bias);
  defaults.set("model.attention_output_bias", attention_output_bias, bias_given ? bias : preset.attention_output_bias);
  defaults.set("model.mlp_bias", mlp_bias, bias_given ? bias : preset.mlp_bias);
}

namespace {

void check_latent(DeckLoader& deck, const ModelConfig& m) {
  const LatentConfig& l = m.latent;
  const bool of_family = family_entry(m.family).hugging_face.latent;
  deck.check(l.exist() == of_family, {"model.kv_lora_rank", "model.family"},
             of_family ? fmt::format("{} has latent attention: give its width, as in 512", name_of(m.family))
                       : fmt::format("{} has no latent attention: use deepseek_v2 or deepseek_v3", name_of(m.family)));
  if (!l.exist() || !of_family) return;
  for (const auto& [key, width] : {std::pair("model.qk_nope_head_dim", l.plain),
                                   {"model.qk_rope_head_dim", l.rotated},
                                   {"model.v_head_dim", l.value}}) {
    deck.check(width > 0, {key}, "must be above 0 with latent attention");
  }
  deck.check(m.head_dim == l.head_dim(), {"model.head_dim", "model.qk_nope_head_dim", "model.qk_rope_head_dim"},
             fmt::format("with latent attention it is qk_nope_head_dim + qk_rope_head_dim = {}: remove the key",
                         l.head_dim()));
  deck.check(m.n_kv_heads == m.n_heads, {"model.n_kv_heads", "model.n_heads"},
             fmt::format("with latent attention it is n_heads = {}: remove the key", m.n_heads));
  deck.check(
      l.value <= l.head_dim(), {"model.v_head_dim", "model.qk_nope_head_dim", "model.qk_rope_head_dim"},
      fmt::format("values of {} elements are wider than queries of {}: make them narrower", l.value, l.head_dim()));
  deck.check(m.positions == ModelConfig::Positions::rope, {"model.positions", "model.kv_lora_rank"},
             "latent attention has rope");
  deck.check(!m.qk_norm, {"model.qk_norm", "model.kv_lora_rank"}, "latent attention has norms of its own");
  deck.check(!m.qkv_bias && !m.attention_output_bias,
             {m.qkv_bias ? "model.qkv_bias" : "model.attention_output_bias", "model.bias", "model.kv_lora_rank"},
             "latent attention has no biases");
}

}  // namespace

void ModelConfig::check(DeckLoader& deck, int64_t sequence_length) const {
  if (n_kv_heads > 0) {
    deck.check(n_heads % n_kv_heads == 0, {"model.n_kv_heads", "model.n_heads"},
               fmt::format("{} does not divide n_heads = {}", n_kv_heads, n_heads));
  }
  if (positions == Positions::rope) {
    const std::string_view blamed = deck.given("model.head_dim") ? "model.head_dim" : "model.n_heads";
    deck.check(
        rotary_dim() % 2 == 0 && rotary_dim() > 0,
        {blamed, "model.n_heads", "model.d_model", "model.head_dim", "model.positions", "model.partial_rotary_factor"},
        fmt::format("rope rotates pairs of elements, and {} elements of a head cannot be paired", rotary_dim()));
    const std::string wrong = rope_scaling.problem(rotary_dim() / 2);
    deck.check(wrong.empty(), {"model.rope_scaling"}, wrong);
    deck.check(rope_scaling.kind != RopeScaling::Kind::yarn || rope_theta > 1,
               {"model.rope_theta", "model.rope_scaling"}, "yarn needs a rope_theta above 1");
  }
  const bool stretches = positions == Positions::rope && rope_scaling.kind == RopeScaling::Kind::dynamic;
  deck.check(sequence_length <= max_seq_len || stretches, {"model.max_seq_len", "batch.sequence_length"},
             fmt::format("{} positions are fewer than batch.sequence_length = {}", max_seq_len, sequence_length));
  deck.check(head_dim <= max_head_dim, {"model.n_heads", "model.d_model", "model.head_dim"},
             fmt::format("heads of {} elements are wider than {}: use more heads", head_dim, max_head_dim));
  deck.check(vocab_size == 0 || pad_token_id < vocab_size, {"model.pad_token_id", "model.vocab_size"},
             fmt::format("{} is not below the {} rows of the embedding", pad_token_id, vocab_size));
  check_latent(deck, *this);
  experts.check(deck, n_layers);
  deck.check(!experts.exist() || gated(), {"model.n_experts", "model.activation"},
             "experts have a gated activation: swiglu, geglu, geglu_tanh or swiglu_oai");
  const auto& of_family = family_entry(family).hugging_face.experts;
  const bool needs_biases = of_family && of_family->has_biases;
  deck.check(!experts.exist() || mlp_bias == needs_biases, {"model.n_experts", "model.mlp_bias", "model.bias"},
             needs_biases ? "the experts of this family have biases: set mlp_bias = true"
                          : "only experts of gpt_oss have biases: set mlp_bias = false");
  const DecoderNames names = nominal_shape(*this).names;
  deck.check(!attention_sinks || !names.sinks.empty(), {"model.attention_sinks", "model.family"},
             "this family has no sinks of attention: remove the key");
  deck.check(!experts.exist() || experts.d_ff_shared == 0 || !names.shared_up.empty(),
             {"model.d_ff_shared", "model.family"}, "this family has no shared expert: remove the key");
  deck.check(!needs_biases || experts.layers(n_layers) == n_layers,
             {"model.dense_layers", "model.expert_every", "model.family"},
             "every layer of this family has experts: remove the key");
  deck.check(
      !experts.exist() || family_entry(family).hugging_face.experts.has_value(), {"model.n_experts", "model.family"},
      fmt::format("{} has no experts: use one of the families with experts, such as qwen3_moe", name_of(family)));
  deck.check(pre_norm || !sandwich_norm, {"model.sandwich_norm", "model.pre_norm"}, "needs pre_norm = true");
  deck.check(input_norm || sandwich_norm, {"model.input_norm", "model.sandwich_norm"}, "false needs sandwich_norm");
  deck.check(!parallel_residual || (pre_norm && !sandwich_norm),
             {"model.parallel_residual", "model.pre_norm", "model.sandwich_norm"},
             "needs pre_norm = true and sandwich_norm = false");
  deck.check(!parallel_residual || !experts.exist(), {"model.parallel_residual", "model.n_experts"},
             "layers with experts are not parallel: set false");
  deck.check(no_rope_layers.empty() || no_rope_layers.back() < n_layers, {"model.no_rope_layers", "model.n_layers"},
             fmt::format("names layer {} of {}, counted from 0", no_rope_layers.empty() ? 0 : no_rope_layers.back(),
                         n_layers));
  deck.check(sliding_window_layers.empty() || sliding_window_layers.back() < n_layers,
             {"model.sliding_window_layers", "model.n_layers"},
             fmt::format("names layer {} of {}, counted from 0",
                         sliding_window_layers.empty() ? 0 : sliding_window_layers.back(), n_layers));
}

int64_t ModelConfig::longest_sequence() const {
  if (positions != Positions::rope) return max_seq_len;
  if (rope_scaling.kind == RopeScaling::Kind::dynamic) return INT32_MAX;
  if (rope_scaling.factor <= 1 || rope_scaling.original_max_position_embeddings <= 0) return max_seq_len;
  const double scaled = rope_scaling.factor * static_cast<double>(rope_scaling.original_max_position_embeddings);
  return std::max(max_seq_len, static_cast<int64_t>(std::min(scaled, 1e9)));
}

}  // namespace llmtrain
