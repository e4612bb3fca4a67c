// SmolLM3 (Bakouch et al. 2025): Llama without positions in every fourth layer (Yang et al. 2025, arXiv:2501.18795).

#include "models/models.hpp"

namespace llmtrain {

FamilyEntry family_smollm3() {
  FamilyEntry family{.doc =
                         "llama without rope in every fourth layer, rope_theta = 2e6, norm_epsilon = 1e-6, tied head"};
  family.defaults = [](ModelConfig& c) {
    llama_defaults(c);
    c.norm_epsilon = 1e-6;
    c.rope_theta = 2e6;
    c.tie_embeddings = true;
    c.no_rope_layers.clear();
    for (int64_t layer = 3; layer < c.n_layers; layer += 4) c.no_rope_layers.push_back(layer);
  };
  family.hugging_face = {.architecture = "SmolLM3ForCausalLM",
                         .max_seq_len = 32768,
                         .n_kv_heads = 4,
                         .rope_theta = 2e6,
                         .tie_embeddings = true,
                         .windows = HuggingFaceFamily::Windows::unrotated_layers,
                         .window = 0,
                         .attention_bias = true,
                         .mlp_bias = true,
                         .pad_token_id = 128004};
  return family;
}

}  // namespace llmtrain
