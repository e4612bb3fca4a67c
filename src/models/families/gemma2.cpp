// Gemma 2 (Gemma team 2024): Llama with a norm before and after attention and MLP, capped scores and logits, sliding
// windows in every other layer, gated tanh-GELU, a scaled and tied embedding, and norm weights stored as their distance
// from 1.

#include <cmath>

#include "models/models.hpp"

namespace llmtrain {

FamilyEntry family_gemma2() {
  FamilyEntry family{.doc =
                         "rope, rmsnorm with 1 + weight before and after each branch, geglu_tanh, tied head, "
                         "embedding_scale = sqrt(d_model), softcaps 50 and 30, a window of 4096 in even layers"};
  family.defaults = [](ModelConfig& c) {
    llama_defaults(c);
    c.norm_epsilon = 1e-6;
    c.activation = ModelConfig::Activation::geglu_tanh;
    c.tie_embeddings = true;
    c.sandwich_norm = true;
    c.zero_centered_norm = true;
    c.embedding_scale = std::sqrt(static_cast<double>(c.d_model));
    c.attention_softcap = 50;
    c.final_softcap = 30;
    c.sliding_window = 4096;
    c.sliding_window_layers.clear();
    for (int64_t layer = 0; layer < c.n_layers; layer += 2) c.sliding_window_layers.push_back(layer);
  };
  family.shape = [](DecoderShape& s) {
    s.names = llama_names();
    s.names.post_attention = "model.layers.{}.post_attention_layernorm";
    s.names.norm2 = "model.layers.{}.pre_feedforward_layernorm";
  };
  family.hugging_face = {.architecture = "Gemma2ForCausalLM",
                         .max_seq_len = 8192,
                         .n_kv_heads = 4,
                         .head_dim = 256,
                         .tie_embeddings = true,
                         .windows = HuggingFaceFamily::Windows::even_layers,
                         .attention_bias = true,
                         .pad_token_id = 0};
  return family;
}

}  // namespace llmtrain
