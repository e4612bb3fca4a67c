// Qwen3 (Qwen team 2025): Llama with an RMSNorm on every head's query and key.

#include "models/models.hpp"

namespace llmtrain {

FamilyEntry family_qwen3() {
  FamilyEntry family{.doc = "llama with qk_norm, rope_theta = 1e6, norm_epsilon = 1e-6"};
  family.defaults = [](ModelConfig& c) {
    llama_defaults(c);
    c.norm_epsilon = 1e-6;
    c.rope_theta = 1e6;
    c.qk_norm = true;
  };
  family.hugging_face = {.architecture = "Qwen3ForCausalLM",
                         .max_seq_len = 32768,
                         .n_kv_heads = 32,
                         .head_dim = 128,
                         .windows = HuggingFaceFamily::Windows::last_layers,
                         .attention_bias = true};
  return family;
}

}  // namespace llmtrain
