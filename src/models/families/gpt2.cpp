// GPT-2 (Radford et al. 2019): learned positions, LayerNorm, biases, tanh-GELU, tied head.

#include <cmath>

#include "models/models.hpp"

namespace llmtrain {

FamilyEntry family_gpt2() {
  FamilyEntry family{.doc = "layernorm, gelu_tanh, learned positions, biases, tied head, d_ff = 4 d_model"};
  family.defaults = [](ModelConfig& c) {
    c.norm = ModelConfig::Norm::layernorm;
    c.norm_epsilon = 1e-5;
    c.activation = ModelConfig::Activation::gelu_tanh;
    c.positions = ModelConfig::Positions::learned;
    c.bias = c.qkv_bias = c.attention_output_bias = c.mlp_bias = true;
    c.tie_embeddings = true;
    c.d_ff = 4 * c.d_model;
  };
  family.shape = [](DecoderShape& s) {
    // Matrices that write to the residual stream start smaller, by the number of such matrices.
    s.projection_std = s.config.initializer_std / std::sqrt(2.0 * static_cast<double>(s.config.n_layers));
    DecoderNames& n = s.names;
    n.embedding = "transformer.wte";
    n.positions = "transformer.wpe";
    n.norm1 = "transformer.h.{}.ln_1";
    n.qkv = {"transformer.h.{}.attn.c_attn"};
    n.query_norm = "transformer.h.{}.attn.q_norm";
    n.key_norm = "transformer.h.{}.attn.k_norm";
    n.projection = "transformer.h.{}.attn.c_proj";
    n.post_attention = "transformer.h.{}.ln_post_attn";
    n.norm2 = "transformer.h.{}.ln_2";
    n.gate = "transformer.h.{}.mlp.c_gate";
    n.up = "transformer.h.{}.mlp.c_fc";
    n.down = "transformer.h.{}.mlp.c_proj";
    n.post_mlp = "transformer.h.{}.ln_post_mlp";
    n.final_norm = "transformer.ln_f";
    n.head = "lm_head";
    if (s.config.head == ModelConfig::Head::token_score) n.score = "classifier";
    n.transposed_linear_layers = true;
  };
  family.hugging_face = {
      .architecture = "GPT2LMHeadModel", .norm_epsilon = 1e-5, .tie_embeddings = true, .padding_row = false};
  return family;
}

}  // namespace llmtrain
