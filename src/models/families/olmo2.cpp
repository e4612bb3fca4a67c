// OLMo 2 (OLMo team 2024, arXiv:2501.00656): Llama with norms after attention and MLP in place of those before, and
// norms over the queries and keys of all heads.

#include "models/models.hpp"

namespace llmtrain {

FamilyEntry family_olmo2() {
  FamilyEntry family{
      .doc = "llama with norms after each branch in place of those before, qk_norm over all heads, rope_theta = 5e5"};
  family.defaults = [](ModelConfig& c) {
    llama_defaults(c);
    c.norm_epsilon = 1e-6;
    c.rope_theta = 5e5;
    c.sandwich_norm = true;
    c.input_norm = false;
    c.qk_norm = c.qk_norm_whole = true;
  };
  family.shape = [](DecoderShape& s) {
    s.names = llama_names();
    s.names.post_attention = "model.layers.{}.post_attention_layernorm";
    s.names.norm2 = "model.layers.{}.pre_feedforward_layernorm";
  };
  family.hugging_face = {
      .architecture = "Olmo2ForCausalLM", .norm_epsilon = 1e-5, .attention_bias = true, .pad_token_id = 1};
  return family;
}

}  // namespace llmtrain
