// StarCoder2 (Lozhkov et al. 2024): rope, LayerNorm, biases, grouped-query attention, an ungated tanh-GELU, tied head.

#include "models/models.hpp"

namespace llmtrain {

FamilyEntry family_starcoder2() {
  FamilyEntry family{.doc = "layernorm, gelu_tanh, rope, biases, tied head, d_ff = 4 d_model"};
  family.defaults = [](ModelConfig& c) {
    llama_defaults(c);
    c.norm = ModelConfig::Norm::layernorm;
    c.activation = ModelConfig::Activation::gelu_tanh;
    c.bias = c.qkv_bias = c.attention_output_bias = c.mlp_bias = true;
    c.tie_embeddings = true;
    c.d_ff = 4 * c.d_model;
  };
  family.shape = [](DecoderShape& s) {
    s.names = llama_names();
    s.names.up = "model.layers.{}.mlp.c_fc";
    s.names.down = "model.layers.{}.mlp.c_proj";
  };
  family.hugging_face = {.architecture = "Starcoder2ForCausalLM",
                         .max_seq_len = 4096,
                         .n_kv_heads = 2,
                         .norm_epsilon = 1e-5,
                         .epsilon_key = "norm_epsilon",
                         .tie_embeddings = true,
                         .windows = HuggingFaceFamily::Windows::all_layers,
                         .window = 0};
  return family;
}

}  // namespace llmtrain
