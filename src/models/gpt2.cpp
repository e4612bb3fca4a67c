// GPT-2 (Radford et al. 2019): learned positions, LayerNorm, biases, tanh-GELU, tied head.

#include <cmath>

#include "models/models.hpp"

namespace llmtrain {

void shape_gpt2(DecoderShape& shape) {
  // What writes to the residual stream starts smaller, by the number of such writes.
  shape.projection_std = shape.config.initializer_std / std::sqrt(2.0 * static_cast<double>(shape.config.n_layers));
  DecoderNames& n = shape.names;
  n.embedding = "transformer.wte";
  n.positions = "transformer.wpe";
  n.norm1 = "transformer.h.{}.ln_1";
  n.qkv = {"transformer.h.{}.attn.c_attn"};
  n.projection = "transformer.h.{}.attn.c_proj";
  n.norm2 = "transformer.h.{}.ln_2";
  n.gate = "transformer.h.{}.mlp.c_gate";
  n.up = "transformer.h.{}.mlp.c_fc";
  n.down = "transformer.h.{}.mlp.c_proj";
  n.final_norm = "transformer.ln_f";
  n.head = "lm_head";
}

}  // namespace llmtrain
