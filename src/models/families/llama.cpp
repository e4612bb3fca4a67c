// Llama (Touvron et al. 2023): rotary positions, RMSNorm, no biases, SwiGLU, grouped-query attention, untied head.

#include "models/models.hpp"

namespace llmtrain {

DecoderNames llama_names() {
  DecoderNames n;
  n.embedding = "model.embed_tokens";
  n.positions = "model.embed_positions";
  n.norm1 = "model.layers.{}.input_layernorm";
  n.qkv = {"model.layers.{}.self_attn.q_proj", "model.layers.{}.self_attn.k_proj", "model.layers.{}.self_attn.v_proj"};
  n.query_norm = "model.layers.{}.self_attn.q_norm";
  n.key_norm = "model.layers.{}.self_attn.k_norm";
  n.sinks = "model.layers.{}.self_attn.sinks";
  n.projection = "model.layers.{}.self_attn.o_proj";
  n.post_attention = "model.layers.{}.attention_output_layernorm";
  n.norm2 = "model.layers.{}.post_attention_layernorm";
  n.gate = "model.layers.{}.mlp.gate_proj";
  n.up = "model.layers.{}.mlp.up_proj";
  n.down = "model.layers.{}.mlp.down_proj";
  n.post_mlp = "model.layers.{}.post_feedforward_layernorm";
  n.final_norm = "model.norm";
  n.head = "lm_head";
  return n;
}

void llama_defaults(ModelConfig& c) {
  c.norm = ModelConfig::Norm::rmsnorm;
  c.norm_epsilon = 1e-5;
  c.activation = ModelConfig::Activation::swiglu;
  c.positions = ModelConfig::Positions::rope;
  c.rope_theta = 10000;
  c.bias = c.qkv_bias = c.attention_output_bias = c.mlp_bias = false;
  c.tie_embeddings = false;
  c.d_ff = (8 * c.d_model / 3 + 63) / 64 * 64;
}

FamilyEntry family_llama() {
  FamilyEntry family{
      .doc = "rmsnorm, swiglu, rope, no biases, untied head, d_ff = 8/3 d_model rounded up to a multiple of 64"};
  family.hugging_face = {.architecture = "LlamaForCausalLM", .attention_bias = true, .mlp_bias = true};
  return family;
}

}  // namespace llmtrain
