// Llama (Touvron et al. 2023): rotary positions, RMSNorm, no biases, SwiGLU, grouped-query attention, untied head.

#include "models/models.hpp"

namespace llmtrain {

void shape_llama(DecoderShape& shape) {
  DecoderNames& n = shape.names;
  n.embedding = "model.embed_tokens";
  n.positions = "model.embed_positions";
  n.norm1 = "model.layers.{}.input_layernorm";
  n.qkv = {"model.layers.{}.self_attn.q_proj", "model.layers.{}.self_attn.k_proj", "model.layers.{}.self_attn.v_proj"};
  n.projection = "model.layers.{}.self_attn.o_proj";
  n.norm2 = "model.layers.{}.post_attention_layernorm";
  n.gate = "model.layers.{}.mlp.gate_proj";
  n.up = "model.layers.{}.mlp.up_proj";
  n.down = "model.layers.{}.mlp.down_proj";
  n.final_norm = "model.norm";
  n.head = "lm_head";
}

}  // namespace llmtrain
