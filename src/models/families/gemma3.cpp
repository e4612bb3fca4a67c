// Gemma 3 (Gemma team 2025), for texts: Gemma 2 with norms of queries and keys in place of capped scores and logits,
// full attention in every sixth layer, and in the others a rope of its own.

#include <cmath>

#include "models/models.hpp"

namespace llmtrain {

namespace {

void defaults(ModelConfig& c) {
  llama_defaults(c);
  c.norm_epsilon = 1e-6;
  c.activation = ModelConfig::Activation::geglu_tanh;
  c.rope_theta = 1e6;
  c.rope_local_theta = 10000;
  c.tie_embeddings = true;
  c.sandwich_norm = true;
  c.zero_centered_norm = true;
  c.qk_norm = true;
  c.embedding_scale = std::sqrt(static_cast<double>(c.d_model));
  c.sliding_window = 1024;
  c.sliding_window_layers.clear();
  for (int64_t layer = 0; layer < c.n_layers; ++layer) {
    if (layer % 6 != 5) c.sliding_window_layers.push_back(layer);
  }
  if (c.n_layers < 6) c.sliding_window_layers.clear();  // all
}

void shape(DecoderShape& s) {
  s.names = llama_names();
  s.names.post_attention = "model.layers.{}.post_attention_layernorm";
  s.names.norm2 = "model.layers.{}.pre_feedforward_layernorm";
}

}  // namespace

FamilyEntry family_gemma3() {
  return {
      "rope, rmsnorm with 1 + weight before and after each branch, qk_norm, geglu_tanh, tied head, embedding_scale = "
      "sqrt(d_model), rope_theta = 1e6 in every sixth layer, in the others a window of 1024 and rope_local_theta = 1e4",
      defaults,
      shape,
      {.architecture = "Gemma3ForCausalLM",
       .model_type = "gemma3_text",
       .max_seq_len = 131072,
       .n_kv_heads = 4,
       .head_dim = 256,
       .rope_theta = 1e6,
       .tie_embeddings = true,
       .windows = HuggingFaceFamily::Windows::five_of_six,
       .attention_bias = true,
       .pad_token_id = 0}};
}

}  // namespace llmtrain
