#include "hf/gguf/gguf_model.hpp"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "models/models.hpp"
#include "models/rope/rope_frequencies.hpp"

namespace llmtrain {
namespace {

using Family = ModelConfig::Family;
using Kind = RopeScaling::Kind;

/// llama.cpp's architecture, and what its graph takes for granted.
struct Architecture {
  const char* name;
  Activation activation = Activation::swiglu;
  bool whole_heads = false;  ///< n_heads * head_dim is d_model
  bool output_bias = false;  ///< the attention's output projection may have a bias
  bool mlp_bias = false;     ///< the MLP may have biases
  bool pair_rows = false;    ///< rope turns neighbouring elements instead of the halves of a head
  bool factors = false;      ///< a table of rope's factors may be given
  bool windows = false;      ///< sliding windows are computed
};

Architecture architecture_of(Family family) {
  switch (family) {
    case Family::gpt2:
      return {.name = "gpt2", .activation = Activation::gelu_tanh, .whole_heads = true, .output_bias = true};
    case Family::llama:
    case Family::mistral:
      return {.name = "llama", .output_bias = true, .mlp_bias = true, .pair_rows = true, .factors = true};
    case Family::qwen2:
      return {.name = "qwen2", .whole_heads = true};
    case Family::qwen3:
      return {.name = "qwen3"};
    case Family::gemma2:
      return {.name = "gemma2", .activation = Activation::geglu_tanh, .windows = true};
    case Family::phi3:
      return {.name = "phi3", .whole_heads = true};
    case Family::mixtral:
      return {.name = "llama", .output_bias = true, .mlp_bias = true, .pair_rows = true, .factors = true};
    case Family::qwen2_moe:
      return {.name = "qwen2moe", .whole_heads = true};
    case Family::qwen3_moe:
      return {.name = "qwen3moe"};
    case Family::olmoe:
      return {.name = "olmoe", .whole_heads = true};
    case Family::starcoder2:
      return {.name = "starcoder2", .activation = Activation::gelu_tanh, .output_bias = true, .mlp_bias = true};
    case Family::granite:
      return {.name = "granite", .output_bias = true, .mlp_bias = true, .pair_rows = true, .factors = true};
    case Family::smollm3:
      return {.name = "smollm3", .pair_rows = true, .factors = true};
    case Family::olmo2:
      return {.name = "olmo2", .whole_heads = true};
    case Family::gpt_neox:
      return {.name = "gptneox",
              .activation = Activation::gelu,
              .whole_heads = true,
              .output_bias = true,
              .mlp_bias = true};
    case Family::falcon:
      return {.name = "falcon", .activation = Activation::gelu, .whole_heads = true};
    case Family::gemma3:
      return {.name = "gemma3", .activation = Activation::geglu_tanh, .windows = true};
    case Family::gpt_oss:
    case Family::deepseek_v2:
    case Family::deepseek_v3:
      return {.name = ""};  // refused by gguf_obstacle()
  }
  throw Error("a family without an architecture");
}

/// Factor on queries: Gemma's scores are divided by the root of a number of the model's, in llama.cpp of one that it
/// takes from the number of layers. Norms of queries have it, if there are any. Granite's factor is in the file.
float query_factor(const ModelConfig& m) {
  if (m.query_pre_attn_scalar == 0 || m.family == Family::granite) return 1;
  const bool large = (m.family == Family::gemma2 && m.n_layers == 46) ||
                     (m.family == Family::gemma3 && m.n_layers == 62);  // those of 27B
  return static_cast<float>(
      std::sqrt(static_cast<double>(large ? m.d_model / m.n_heads : m.head_dim) / m.query_pre_attn_scalar));
}

std::string rope_obstacle(const ModelConfig& m, const Architecture& a) {
  const RopeScaling& s = m.rope_scaling;
  if (s.kind == Kind::dynamic) return "dynamic rope scaling";
  if (s.kind == Kind::llama3 && !a.factors) return "llama3's rope scaling in this family";
  if (s.kind == Kind::longrope && !a.factors && m.family != Family::phi3) return "longrope in this family";
  if (s.kind == Kind::yarn && !s.truncate) return "yarn without truncate";
  const bool partial = m.family == Family::phi3 || m.family == Family::gpt_neox || m.family == Family::gpt2;
  if (!partial && m.partial_rotary_factor != 1) return "a rope of a part of each head";
  return "";
}

std::string gemma2_obstacle(const ModelConfig& m) {
  if (m.attention_softcap <= 0 || m.final_softcap <= 0) return "Gemma 2 without softcaps";
  std::vector<int64_t> even;
  for (int64_t layer = 0; layer < m.n_layers; layer += 2) even.push_back(layer);
  if (m.sliding_window > 0 && m.sliding_window_layers != even) return "windows in other layers than the even ones";
  return m.tie_embeddings ? "" : "Gemma 2 with an untied head";
}

std::string gemma3_obstacle(const ModelConfig& m) {
  if (m.attention_softcap > 0 || m.final_softcap > 0) return "Gemma 3 with softcaps";
  std::vector<int64_t> windows;
  for (int64_t layer = 0; layer < m.n_layers; ++layer) {
    if (layer % 6 != 5) windows.push_back(layer);
  }
  if (std::ssize(windows) == m.n_layers) windows.clear();  // all
  if (m.sliding_window == 0 || m.sliding_window_layers != windows) return "windows in other layers than five of six";
  if (m.rope_local_theta <= 0) return "Gemma 3 with one rope";
  return m.tie_embeddings ? "" : "Gemma 3 with an untied head";
}

/// Parts that llama.cpp computes in some families only.
std::string part_obstacle(const ModelConfig& m) {
  const bool granite = m.family == Family::granite, falcon = m.family == Family::falcon;
  const bool scales_embedding = granite || m.family == Family::gemma2 || m.family == Family::gemma3;
  if (!scales_embedding && m.embedding_scale != 1) return "a factor on the embedding";
  if (!granite && (m.residual_multiplier != 1 || m.logits_scaling != 1)) return "factors on branches or logits";
  if (m.input_norm == (m.family == Family::olmo2)) return "norms before or after the branches in this family";
  if (falcon && !m.parallel_residual) return "a Falcon whose branches follow each other";
  if (m.parallel_residual && !falcon && m.family != Family::gpt_neox) return "parallel branches in this family";
  if (m.shared_norm && !falcon) return "one norm of both branches in this family";
  const bool neox = m.family == Family::gpt_neox,
             biased = m.bias && m.qkv_bias && m.attention_output_bias && m.mlp_bias;
  if ((neox || m.family == Family::starcoder2) && !biased) return "this family without biases";
  if (neox && m.tie_embeddings) return "a GPT-NeoX with a tied head";
  const bool fused = falcon || m.family == Family::gpt_neox || m.family == Family::gpt2 || m.family == Family::phi3;
  if (fused && m.query_pre_attn_scalar > 0 && query_factor(m) != 1) return "scores with a factor of their own";
  std::vector<int64_t> plain;
  for (int64_t layer = 3; layer < m.n_layers && m.family == Family::smollm3; layer += 4) plain.push_back(layer);
  if (m.no_rope_layers != plain) return "layers without positions other than every fourth of SmolLM3";
  return m.rope_local_theta > 0 && m.family != Family::gemma3 ? "a rope of layers with the window" : "";
}

/// llama.cpp's graphs have experts in every layer, and weights that are normalised or not by the family.
std::string experts_obstacle(const ModelConfig& m) {
  const ExpertsConfig& e = m.experts;
  if (std::string(architecture_of(m.family).name).empty() && e.exist()) {
    return "experts of this family";
  }
  if (!e.exist()) return m.family == Family::mixtral ? "a Mixtral without experts" : "";
  if (e.layers(m.n_layers) < m.n_layers) return "layers without experts";
  const bool normalised = m.family == Family::mixtral || m.family == Family::qwen3_moe;
  if (e.norm_topk != normalised) return fmt::format("norm_topk = {} in this family", e.norm_topk);
  if (e.score != ExpertsConfig::Score::softmax || e.scale != 1 || e.groups != 1) return "this choice of experts";
  const bool shared = m.family == Family::qwen2_moe;
  return (e.d_ff_shared > 0) == shared && e.shared_gate == shared ? "" : "this shared expert";
}

/// The factor of llama.cpp's own on cos and sin with yarn.
double yarn_factor(double factor) { return 0.1 * std::log(factor) + 1; }

double scaling_factor(const ModelConfig& m) {
  const RopeScaling& s = m.rope_scaling;
  if (s.factor > 0 || s.original_max_position_embeddings == 0) return s.factor;
  return static_cast<double>(m.max_seq_len) / static_cast<double>(s.original_max_position_embeddings);
}

void add_rope(GgufMetadata& metadata, const ModelConfig& m, const std::string& prefix) {
  const RopeScaling& s = m.rope_scaling;
  metadata.add(prefix + "rope.dimension_count", static_cast<uint32_t>(m.rotary_dim()));
  metadata.add(prefix + "rope.freq_base", static_cast<float>(m.rope_theta));
  const auto original = static_cast<uint32_t>(s.original_max_position_embeddings);
  if (s.kind == Kind::linear || s.kind == Kind::yarn) {
    metadata.add(prefix + "rope.scaling.type", s.kind == Kind::linear ? "linear" : "yarn");
    metadata.add(prefix + "rope.scaling.factor", static_cast<float>(scaling_factor(m)));
  }
  if (s.kind == Kind::yarn) {
    metadata.add(prefix + "rope.scaling.original_context_length", original);
    metadata.add(prefix + "rope.scaling.yarn_beta_fast", static_cast<float>(s.beta_fast));
    metadata.add(prefix + "rope.scaling.yarn_beta_slow", static_cast<float>(s.beta_slow));
    metadata.add(prefix + "rope.scaling.attn_factor",
                 static_cast<float>(make_rope(m).factor / yarn_factor(scaling_factor(m))));
  }
  if (s.kind == Kind::longrope) {
    metadata.add(prefix + "rope.scaling.type", "longrope");
    metadata.add(prefix + "rope.scaling.original_context_length", original);
    metadata.add(prefix + "rope.scaling.attn_factor", static_cast<float>(make_rope(m).factor));
  }
}

std::vector<float> as_floats(const std::vector<double>& values) { return {values.begin(), values.end()}; }

}  // namespace

std::string gguf_obstacle(const ModelConfig& m) {
  const Architecture a = architecture_of(m.family);
  if (m.scores()) return "a reward model";
  if (std::string experts = experts_obstacle(m); !experts.empty()) return experts;
  if (m.attention_sinks) return "sinks of attention";
  if (m.latent.exist()) return "latent attention";
  const bool whole = m.family == Family::olmoe || m.family == Family::olmo2;
  const bool norms = whole || m.family == Family::qwen3 || m.family == Family::qwen3_moe || m.family == Family::gemma3;
  if (m.qk_norm != norms || m.qk_norm_whole != whole) return "norms of queries and keys in this family";
  if (!m.pre_norm) return "norms after the branches";
  if (m.activation != a.activation) return fmt::format("the activation {}", name_of(m.activation));
  if (a.whole_heads && m.n_heads * m.head_dim != m.d_model) return "n_heads * head_dim other than d_model";
  if (m.attention_output_bias && !a.output_bias) return "a bias of the attention's output";
  const bool learned = m.positions == ModelConfig::Positions::learned, gpt2 = m.family == Family::gpt2;
  if (learned != gpt2) return fmt::format("positions = {}", name_of(m.positions));
  if (gpt2 && !(m.bias && m.qkv_bias && m.attention_output_bias && m.mlp_bias)) return "a GPT-2 without biases";
  if (m.mlp_bias && !gpt2 && !a.mlp_bias) return "biases of the MLP";
  const bool plain_qkv = m.family == Family::phi3 || m.family == Family::gemma2 || m.family == Family::gemma3 ||
                         m.family == Family::falcon || m.family == Family::olmo2;
  if (plain_qkv && m.qkv_bias) return "biases of q, k, v";
  if (std::string part = part_obstacle(m); !part.empty()) return part;
  if (std::string rope = rope_obstacle(m, a); !learned && !rope.empty()) return rope;
  if (m.family == Family::gemma3) return gemma3_obstacle(m);
  return m.family == Family::gemma2 ? gemma2_obstacle(m) : "";
}

std::vector<std::string> gguf_differences(const ModelConfig& m) {
  std::vector<std::string> notes;
  if (m.sliding_window > 0 && m.sliding_window < m.longest_sequence() && !architecture_of(m.family).windows) {
    notes.push_back(
        fmt::format("llama.cpp lets each token attend to all before it in this family, not to a window of "
                    "{}: longer texts give other results there",
                    m.sliding_window));
  }
  if (m.activation == ModelConfig::Activation::gelu) {
    notes.emplace_back("llama.cpp computes GELU by tanh: its results differ slightly");
  }
  if (m.rope_scaling.kind == Kind::longrope) {
    notes.push_back(
        fmt::format("llama.cpp chooses the rope factors by the size of its context: with one of at most {} "
                    "tokens its results are those of short texts here, with a larger one those of long texts",
                    m.rope_scaling.original_max_position_embeddings));
  }
  return notes;
}

std::string_view gguf_architecture(ModelConfig::Family family) { return architecture_of(family).name; }

void add_hyperparameters(GgufMetadata& metadata, const ModelConfig& m) {
  const Architecture a = architecture_of(m.family);
  const std::string prefix = std::string(a.name) + ".";
  const auto add = [&](const char* key, int64_t value) { metadata.add(prefix + key, static_cast<uint32_t>(value)); };
  add("vocab_size", m.vocab_size);
  add("context_length", m.longest_sequence());
  add("embedding_length", m.d_model);
  add("block_count", m.n_layers);
  add("feed_forward_length", m.d_ff);
  add("attention.head_count", m.n_heads);
  add("attention.head_count_kv", m.n_kv_heads);
  add("attention.key_length", m.head_dim);
  add("attention.value_length", m.head_dim);
  const bool layernorm = m.norm == ModelConfig::Norm::layernorm;
  metadata.add(prefix + (layernorm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon"),
               static_cast<float>(m.norm_epsilon));
  if (m.positions == ModelConfig::Positions::rope) add_rope(metadata, m, prefix);
  if (const ExpertsConfig& e = m.experts; e.exist()) {
    add("expert_count", e.count);
    add("expert_used_count", e.per_token);
    if (m.family != Family::mixtral && m.family != Family::olmoe) add("expert_feed_forward_length", e.d_ff);
    if (e.d_ff_shared > 0) add("expert_shared_feed_forward_length", e.d_ff_shared);
  }
  if (m.family == Family::phi3) add("attention.sliding_window", 0);
  if (m.family == Family::gemma3) {
    add("attention.sliding_window", m.sliding_window);
    metadata.add(prefix + "rope.freq_base_swa", static_cast<float>(m.rope_local_theta));
  }
  if (m.family == Family::gpt_neox) metadata.add(prefix + "use_parallel_residual", m.parallel_residual);
  if (m.family == Family::falcon) metadata.add(prefix + "tensor_data_layout", "jploski");
  if (m.family == Family::granite) {
    metadata.add(prefix + "attention.scale", static_cast<float>(1 / std::sqrt(m.query_pre_attn_scalar)));
    metadata.add(prefix + "embedding_scale", static_cast<float>(m.embedding_scale));
    metadata.add(prefix + "residual_scale", static_cast<float>(m.residual_multiplier));
    metadata.add(prefix + "logit_scale", static_cast<float>(m.logits_scaling));
  }
  if (m.family == Family::gemma2) {
    // Without a window none of the tokens is outside of it.
    add("attention.sliding_window", m.sliding_window > 0 ? m.sliding_window : m.max_seq_len);
    metadata.add(prefix + "attn_logit_softcapping", static_cast<float>(m.attention_softcap));
    metadata.add(prefix + "final_logit_softcapping", static_cast<float>(m.final_softcap));
  }
}

namespace {

/// The name of a tensor of experts or of their routers; not set for others.
std::optional<GgufSlice> slice_of_experts(const DecoderShape& shape, const std::string& module) {
  const DecoderNames& n = shape.names;
  const ModelConfig& m = shape.config;
  const std::pair<const std::string&, const char*> of_expert[] = {
      {n.expert_gate, "ffn_gate_exps"}, {n.expert_up, "ffn_up_exps"}, {n.expert_down, "ffn_down_exps"}};
  const std::pair<const std::string&, const char*> of_layer[] = {{n.router, "ffn_gate_inp"},
                                                                 {n.shared_router, "ffn_gate_inp_shexp"},
                                                                 {n.shared_gate, "ffn_gate_shexp"},
                                                                 {n.shared_up, "ffn_up_shexp"},
                                                                 {n.shared_down, "ffn_down_shexp"}};
  for (int64_t layer = 0; layer < m.n_layers && m.experts.exist(); ++layer) {
    for (const auto& [pattern, renamed] : of_layer) {
      if (pattern.empty() || at_layer(pattern, layer) != module) continue;
      GgufSlice slice{fmt::format("blk.{}.{}.weight", layer, renamed)};
      slice.as_vector = &pattern == &n.shared_router;
      slice.in_fp32 = &pattern == &n.router;
      return slice;
    }
    for (const auto& [pattern, renamed] : of_expert) {
      const std::string first = at_layer(pattern, layer);
      if (!module.starts_with(first.substr(0, first.rfind(".0.") + 1))) continue;
      for (int64_t expert = 0; expert < m.experts.count; ++expert) {
        if (at_layer(pattern, layer, expert) != module) continue;
        GgufSlice slice{fmt::format("blk.{}.{}.weight", layer, renamed)};
        slice.expert = expert;
        return slice;
      }
    }
  }
  return std::nullopt;
}

}  // namespace

GgufSlice gguf_slice(const DecoderShape& shape, const std::string& tensor) {
  const DecoderNames& n = shape.names;
  const ModelConfig& m = shape.config;
  const bool paired = architecture_of(m.family).pair_rows;
  struct Role {
    std::string name, renamed;
    int64_t pair_heads = 0;
    float factor = 1;
  };
  // Falcon's norms of two: llama.cpp's first one is the MLP's.
  const bool two = m.family == Family::falcon && !m.shared_norm;
  const float of_matrix = m.qk_norm ? 1 : query_factor(m), of_norm = m.qk_norm ? query_factor(m) : 1;
  std::vector<Role> roles = {{n.embedding, "token_embd"},
                             {n.positions, "position_embd"},
                             {n.final_norm, "output_norm"},
                             {n.head, "output"},
                             {n.norm1, two ? "blk.{}.attn_norm_2" : "blk.{}.attn_norm"},
                             {n.norm2, two ? "blk.{}.attn_norm" : "blk.{}.ffn_norm"},
                             {n.projection, "blk.{}.attn_output"},
                             {n.up, "blk.{}.ffn_up"},
                             {n.gate, "blk.{}.ffn_gate"},
                             {n.down, "blk.{}.ffn_down"},
                             {n.query_norm, "blk.{}.attn_q_norm", 0, of_norm},
                             {n.key_norm, "blk.{}.attn_k_norm"},
                             {n.post_attention, "blk.{}.post_attention_norm"},
                             {n.post_mlp, "blk.{}.post_ffw_norm"}};
  if (n.qkv.size() == 1) {
    roles.push_back({n.qkv[0], "blk.{}.attn_qkv"});
  } else {
    roles.push_back({n.qkv[0], "blk.{}.attn_q", paired ? m.n_heads : 0, of_matrix});
    roles.push_back({n.qkv[1], "blk.{}.attn_k", paired ? m.n_kv_heads : 0});
    roles.push_back({n.qkv[2], "blk.{}.attn_v"});
  }
  const size_t dot = tensor.rfind('.');
  const std::string module = tensor.substr(0, dot), kind = tensor.substr(dot);
  if (const std::optional<GgufSlice> of_experts = slice_of_experts(shape, module)) return *of_experts;
  for (const Role& role : roles) {
    for (int64_t layer = 0; layer < m.n_layers; ++layer) {
      if (role.name.empty() || at_layer(role.name, layer) != module) continue;
      const bool norm = role.renamed.ends_with("norm");
      const bool grouped = n.grouped_heads && role.name == n.qkv[0];
      return {at_layer(role.renamed, layer) + kind, role.pair_heads,
              grouped ? HeadGroups{m.n_heads, m.n_kv_heads} : HeadGroups{0, 0},
              norm && m.zero_centered_norm ? 1.0F : 0.0F, role.factor};
    }
  }
  throw Error("no name in GGUF for " + tensor);
}

std::vector<GgufTable> gguf_tables(const ModelConfig& m) {
  if (m.positions != ModelConfig::Positions::rope) return {};
  if (m.rope_scaling.kind == Kind::longrope) {
    return {{"rope_factors_long.weight", as_floats(m.rope_scaling.long_factor)},
            {"rope_factors_short.weight", as_floats(m.rope_scaling.short_factor)}};
  }
  if (m.rope_scaling.kind != Kind::llama3) return {};
  ModelConfig plain = m;
  plain.rope_scaling = {};
  const std::vector<double> scaled = make_rope(m).frequencies;
  std::vector<double> factors = make_rope(plain).frequencies;
  for (size_t i = 0; i < factors.size(); ++i) factors[i] /= scaled[i];
  return {{"rope_freqs.weight", as_floats(factors)}};
}

}  // namespace llmtrain
