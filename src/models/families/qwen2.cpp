// Qwen2 and Qwen2.5 (Qwen team 2024): Llama with biases on queries, keys and values.

#include "models/models.hpp"

namespace llmtrain {

FamilyEntry family_qwen2() {
  FamilyEntry family{.doc = "llama with qkv_bias, rope_theta = 1e6, norm_epsilon = 1e-6"};
  family.defaults = [](ModelConfig& c) {
    llama_defaults(c);
    c.norm_epsilon = 1e-6;
    c.rope_theta = 1e6;
    c.qkv_bias = true;
  };
  family.hugging_face = {.architecture = "Qwen2ForCausalLM",
                         .max_seq_len = 32768,
                         .n_kv_heads = 32,
                         .windows = HuggingFaceFamily::Windows::last_layers};
  return family;
}

}  // namespace llmtrain
