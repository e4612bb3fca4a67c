// Falcon (Almazrouei et al. 2023): attention and MLP beside each other, LayerNorm, exact GELU, no biases in matrices,
// tied head. The small models have one key head and one norm for both branches, the large ones groups of heads, side by
// side in files, and two norms.

#include "models/models.hpp"

namespace llmtrain {

FamilyEntry family_falcon() {
  FamilyEntry family{
      .doc =
          "layernorm, gelu, rope, parallel_residual, shared_norm, biases of norms alone, tied head, d_ff = 4 d_model"};
  family.defaults = [](ModelConfig& c) {
    c.norm = ModelConfig::Norm::layernorm;
    c.norm_epsilon = 1e-5;
    c.activation = ModelConfig::Activation::gelu;
    c.positions = ModelConfig::Positions::rope;
    c.rope_theta = 10000;
    c.bias = true;
    c.qkv_bias = c.attention_output_bias = c.mlp_bias = false;
    c.tie_embeddings = true;
    c.parallel_residual = c.shared_norm = true;
    c.d_ff = 4 * c.d_model;
  };
  family.shape = [](DecoderShape& s) {
    DecoderNames& n = s.names;
    const bool two_norms = s.config.parallel_residual && !s.config.shared_norm;
    n.embedding = "transformer.word_embeddings";
    n.positions = "transformer.position_embeddings";
    n.norm1 = two_norms ? "transformer.h.{}.ln_attn" : "transformer.h.{}.input_layernorm";
    n.qkv = {"transformer.h.{}.self_attention.query_key_value"};
    n.grouped_heads = s.config.n_kv_heads > 1;
    n.query_norm = "transformer.h.{}.self_attention.q_norm";
    n.key_norm = "transformer.h.{}.self_attention.k_norm";
    n.projection = "transformer.h.{}.self_attention.dense";
    n.post_attention = "transformer.h.{}.attention_output_layernorm";
    n.norm2 = two_norms ? "transformer.h.{}.ln_mlp" : "transformer.h.{}.post_attention_layernorm";
    n.gate = "transformer.h.{}.mlp.gate_proj";
    n.up = "transformer.h.{}.mlp.dense_h_to_4h";
    n.down = "transformer.h.{}.mlp.dense_4h_to_h";
    n.post_mlp = "transformer.h.{}.post_feedforward_layernorm";
    n.final_norm = "transformer.ln_f";
    n.head = "lm_head";
  };
  family.hugging_face = {.architecture = "FalconForCausalLM",
                         .norm_epsilon = 1e-5,
                         .epsilon_key = "layer_norm_epsilon",
                         .tie_embeddings = true,
                         .padding_row = false};
  return family;
}

}  // namespace llmtrain
