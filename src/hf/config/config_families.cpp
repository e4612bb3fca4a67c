#include "hf/config/config_families.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "core/deck/deck.hpp"

namespace llmtrain {
namespace {

using Family = ModelConfig::Family;

constexpr int64_t widest_falcon = int64_t{1} << 18;

/// Marks keys that the models of Transformers ignore, although their names promise other mathematics. Only a value
/// other than the one that is computed anyway is named in the warning about unknown keys.
void mark_ignored_keys(ConfigKeys& keys, Family family) {
  const std::array<std::pair<const char*, nlohmann::json>, 5> unread = {{{"add_cross_attention", false},
                                                                         {"pruned_heads", nlohmann::json::object()},
                                                                         {"rope_interleaved", false},
                                                                         {"use_bidirectional_attention", false},
                                                                         {"use_mrope", false}}};
  if (family == Family::gpt2) keys.only("add_cross_attention", false, "cross-attention is not supported");
  if (family == Family::gemma2 || family == Family::gemma3) {
    keys.only("use_bidirectional_attention", false, "only causal attention is supported");
  }
  for (const auto& [key, value] : unread) keys.no_effect_as(key, value);
}

void read_biases(ConfigKeys& keys, ModelConfig& c) {
  const HuggingFaceFamily& hf = family_entry(c.family).hugging_face;
  const bool of_family = c.family == Family::gpt_oss || c.family == Family::gpt_neox;
  if (c.family == Family::starcoder2) {
    c.qkv_bias = c.attention_output_bias = c.mlp_bias = keys.boolean("use_bias", true);
  } else if (hf.attention_bias) {
    c.qkv_bias = c.attention_output_bias = keys.boolean("attention_bias", of_family);
  } else {
    keys.no_effect_as("attention_bias", c.qkv_bias);
  }
  if (hf.mlp_bias) {
    c.mlp_bias = keys.boolean("mlp_bias", false);
  } else {
    keys.no_effect_as("mlp_bias", c.mlp_bias);
  }
}

void read_gemma(ConfigKeys& keys, ModelConfig& c) {
  const bool capped = c.family == Family::gemma2;
  if (c.sliding_window > 0) keys.only("sliding_window_size", c.sliding_window, "must agree with sliding_window");
  c.query_pre_attn_scalar = keys.number("query_pre_attn_scalar", 256);
  const auto cap = [&](std::string_view key, double otherwise) {
    return keys.number(key, keys.has_key(key) || !capped ? 0.0 : otherwise);
  };
  if (capped) {
    c.attention_softcap = cap("attn_logit_softcapping", 50);
  } else {
    keys.only("attn_logit_softcapping", nullptr, "Transformers does not apply it to this family");
  }
  c.final_softcap = cap("final_logit_softcapping", 30);
  c.embedding_scale = std::sqrt(static_cast<double>(c.d_model));
}

/// Granite's attention_multiplier is the factor itself.
void read_granite(ConfigKeys& keys, ModelConfig& c) {
  const double factor = keys.number("attention_multiplier", 1);
  c.query_pre_attn_scalar = static_cast<float>(1 / (factor * factor));  // without the rounding of a written factor
  c.embedding_scale = keys.number("embedding_multiplier", 1);
  c.residual_multiplier = keys.number("residual_multiplier", 1);
  c.logits_scaling = keys.number("logits_scaling", 1);
}

/// Writes a number without a fraction as an integer, as Transformers has it.
nlohmann::json number(double value) {
  const bool is_whole = value == std::floor(value) && std::abs(value) < 0x1p53;
  return is_whole ? nlohmann::json(static_cast<int64_t>(value)) : nlohmann::json(value);
}

void write_gemma(nlohmann::json& j, const ModelConfig& c) {
  j["query_pre_attn_scalar"] = number(c.query_pre_attn_scalar);
  j["attn_logit_softcapping"] = nullptr;
  if (c.attention_softcap > 0) j["attn_logit_softcapping"] = c.attention_softcap;
  j["final_logit_softcapping"] = nullptr;
  if (c.final_softcap > 0) j["final_logit_softcapping"] = c.final_softcap;
}

}  // namespace

std::string_view model_type_of(Family family) {
  const std::string_view type = family_entry(family).hugging_face.model_type;
  return type.empty() ? name_of(family) : type;
}

ModelConfig::Activation plain_activation(ConfigKeys& keys, std::string_view key, const std::string& fallback) {
  const std::string name = keys.text(key, fallback);
  if (name == "gelu_new" || name == "gelu_pytorch_tanh" || name == "gelu_fast") return Activation::gelu_tanh;
  if (name == "gelu") return Activation::gelu;
  if (name == "relu") return Activation::relu;
  if (name == "silu" || name == "swish") return Activation::silu;
  keys.problem(key, printable(name) + ": must be gelu_new, gelu, relu or silu");
  return Activation::gelu;
}

void read_falcon(ConfigKeys& keys, ModelConfig& c) {
  const HuggingFaceFamily& hf = family_entry(c.family).hugging_face;
  keys.only("alibi", false, "ALiBi is not supported; only Falcon's models with rope are");
  c.d_model = keys.integer("hidden_size", {}, 1, widest_falcon);
  c.n_layers = keys.integer("num_hidden_layers", {}, 1, 4096);
  c.n_heads = keys.integer("num_attention_heads", {}, 1, 4096);
  family_entry(c.family).defaults(c);
  const bool grouped = keys.boolean("new_decoder_architecture", false);
  const bool one_key_head = keys.boolean("multi_query", true) && !grouped;
  const int64_t key_heads = keys.integer("num_kv_heads", c.n_heads, 1, 4096);
  c.n_kv_heads = one_key_head ? 1 : key_heads;
  if (c.n_heads % c.n_kv_heads != 0 || (!grouped && !one_key_head && key_heads != c.n_heads)) {
    keys.problem("num_kv_heads", fmt::format("{} does not fit the {} heads", key_heads, c.n_heads));
  }
  c.parallel_residual = keys.boolean("parallel_attn", true);
  if (grouped && !c.parallel_residual) {
    keys.problem("parallel_attn", "must be true with new_decoder_architecture");
  }
  const int64_t norms = keys.integer("num_ln_in_parallel_attn", grouped ? 2 : 1, 1, 2);
  if (!grouped && c.parallel_residual && norms == 2) {
    keys.problem("num_ln_in_parallel_attn", "2 needs new_decoder_architecture");
  }
  c.shared_norm = c.parallel_residual && norms == 1;
  c.qkv_bias = c.attention_output_bias = c.mlp_bias = keys.boolean("bias", false);
  c.d_ff = keys.integer("ffn_hidden_size", 4 * c.d_model, 1, widest_falcon * 4);
  if (c.d_model % c.n_heads != 0) {
    keys.problem("num_attention_heads", fmt::format("{} heads must divide hidden_size", c.n_heads));
  }
  c.head_dim = std::max<int64_t>(c.d_model / c.n_heads, 1);
  c.max_seq_len = rotary_positions(keys, hf.max_seq_len);
  c.norm_epsilon = keys.number(hf.epsilon_key, hf.norm_epsilon);
  c.tie_embeddings = keys.boolean("tie_word_embeddings", hf.tie_embeddings);
  c.activation = plain_activation(keys, "activation", "gelu");
  keys.no_effect("apply_residual_connection_post_layernorm");
}

void write_falcon(nlohmann::json& j, const ModelConfig& c) {
  const bool two_norms = c.parallel_residual && !c.shared_norm;
  const bool grouped = two_norms || (c.n_kv_heads != 1 && c.n_kv_heads != c.n_heads);
  j["hidden_size"] = c.d_model;
  j["num_hidden_layers"] = c.n_layers;
  j["num_attention_heads"] = c.n_heads;
  j["num_kv_heads"] = c.n_kv_heads;
  j["new_decoder_architecture"] = grouped;
  j["multi_query"] = c.n_kv_heads == 1;
  j["parallel_attn"] = c.parallel_residual;
  if (grouped) j["num_ln_in_parallel_attn"] = two_norms ? 2 : 1;
  j["bias"] = c.qkv_bias;
  j["alibi"] = false;
  j["ffn_hidden_size"] = c.d_ff;
  j["max_position_embeddings"] = c.max_seq_len;
  j["layer_norm_epsilon"] = c.norm_epsilon;
  j["attention_dropout"] = c.attention_dropout;
  j["hidden_dropout"] = c.dropout;
}

void read_layers_without_rope(ConfigKeys& keys, ModelConfig& c) {
  constexpr const char* key = "no_rope_layers";
  const int64_t interval = keys.integer("no_rope_layer_interval", 4, 1, 1 << 20);
  const nlohmann::json* rotated = keys.value(key);
  c.no_rope_layers.clear();
  const bool numbers = rotated != nullptr && rotated->is_array() &&
                       std::ranges::all_of(*rotated, [](const auto& item) { return item.is_number_integer(); });
  if (rotated != nullptr && (!numbers || std::ssize(*rotated) < c.n_layers)) {
    return keys.problem(key, "must be a list with 1 or 0 for each layer, 1 for those with rope");
  }
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    const bool has = rotated != nullptr ? (*rotated)[static_cast<size_t>(layer)] != 0 : (layer + 1) % interval != 0;
    if (!has) c.no_rope_layers.push_back(layer);
  }
}

void read_family_keys(ConfigKeys& keys, ModelConfig& c) {
  if (c.family != Family::falcon) read_biases(keys, c);
  if (family_entry(c.family).hugging_face.experts) read_experts(keys, c);
  mark_ignored_keys(keys, c.family);
  c.query_pre_attn_scalar = static_cast<double>(c.head_dim);
  switch (c.family) {
    case Family::phi3:  // some files generalise the model and hold the values of the stock one
      keys.only("full_attn_mod", 1, "only full attention in every layer is supported");
      keys.only("interpolate_factor", 1, "this interpolation of positions is not supported");
      keys.only("lm_head_bias", false, "a bias of the head is not supported");
      return keys.only("mup_use_scaling", false, "scaled widths are not supported");
    case Family::gemma2:
    case Family::gemma3:
      return read_gemma(keys, c);
    case Family::granite:
      return read_granite(keys, c);
    case Family::gpt_neox:
      c.parallel_residual = keys.boolean("use_parallel_residual", true);
      return;
    case Family::starcoder2:
      return keys.no_effect("residual_dropout embedding_dropout mlp_type norm_type");
    default:
      return;
  }
}

void write_family_keys(nlohmann::json& j, const ModelConfig& c) {
  switch (c.family) {
    case Family::phi3:
      j["resid_pdrop"] = c.dropout;
      j["embd_pdrop"] = c.dropout;
      return;
    case Family::gemma2:
    case Family::gemma3:
      return write_gemma(j, c);
    case Family::granite:
      j["attention_multiplier"] = 1 / std::sqrt(c.query_pre_attn_scalar);
      j["embedding_multiplier"] = c.embedding_scale;
      j["residual_multiplier"] = c.residual_multiplier;
      j["logits_scaling"] = c.logits_scaling;
      return;
    case Family::gpt_neox:
      j["use_parallel_residual"] = c.parallel_residual;
      j["hidden_dropout"] = c.dropout;
      return;
    case Family::starcoder2:
      j["use_bias"] = c.qkv_bias;
      j["residual_dropout"] = c.dropout;
      j["embedding_dropout"] = c.dropout;
      return;
    case Family::smollm3:
      j["no_rope_layers"] = std::vector<int>(static_cast<size_t>(c.n_layers), 1);
      for (const int64_t layer : c.no_rope_layers) j["no_rope_layers"][static_cast<size_t>(layer)] = 0;
      return;
    default:
      return;
  }
}

}  // namespace llmtrain
