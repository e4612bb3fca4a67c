// GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023): attention and MLP beside each other, LayerNorm,
// biases, rope on a quarter of each head, and queries, keys and values of a head side by side in files.

#include "models/models.hpp"

namespace llmtrain {

FamilyEntry family_gpt_neox() {
  FamilyEntry family{
      .doc = "layernorm, gelu, rope on a quarter of each head, parallel_residual, biases, d_ff = 4 d_model"};
  family.defaults = [](ModelConfig& c) {
    c.norm = ModelConfig::Norm::layernorm;
    c.norm_epsilon = 1e-5;
    c.activation = ModelConfig::Activation::gelu;
    c.positions = ModelConfig::Positions::rope;
    c.rope_theta = 10000;
    c.partial_rotary_factor = 0.25;
    c.bias = c.qkv_bias = c.attention_output_bias = c.mlp_bias = true;
    c.tie_embeddings = false;
    c.parallel_residual = true;
    c.d_ff = 4 * c.d_model;
  };
  family.shape = [](DecoderShape& s) {
    DecoderNames& n = s.names;
    n.embedding = "gpt_neox.embed_in";
    n.positions = "gpt_neox.embed_positions";
    n.norm1 = "gpt_neox.layers.{}.input_layernorm";
    n.qkv = {"gpt_neox.layers.{}.attention.query_key_value"};
    n.grouped_heads = true;
    n.query_norm = "gpt_neox.layers.{}.attention.q_norm";
    n.key_norm = "gpt_neox.layers.{}.attention.k_norm";
    n.projection = "gpt_neox.layers.{}.attention.dense";
    n.post_attention = "gpt_neox.layers.{}.attention_output_layernorm";
    n.norm2 = "gpt_neox.layers.{}.post_attention_layernorm";
    n.gate = "gpt_neox.layers.{}.mlp.gate_proj";
    n.up = "gpt_neox.layers.{}.mlp.dense_h_to_4h";
    n.down = "gpt_neox.layers.{}.mlp.dense_4h_to_h";
    n.post_mlp = "gpt_neox.layers.{}.post_feedforward_layernorm";
    n.final_norm = "gpt_neox.final_layer_norm";
    n.head = "embed_out";
  };
  family.hugging_face = {.architecture = "GPTNeoXForCausalLM",
                         .norm_epsilon = 1e-5,
                         .epsilon_key = "layer_norm_eps",
                         .attention_bias = true,
                         .padding_row = false,
                         .partial_rotary = 0.25};
  return family;
}

}  // namespace llmtrain
