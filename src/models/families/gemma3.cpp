// Gemma 3 (Gemma team 2025), for texts: Gemma 2 with norms of queries and keys in place of capped scores and logits,
// full attention in every sixth layer, and in the others a rope of its own.

#include "models/models.hpp"

namespace llmtrain {

FamilyEntry family_gemma3() {
  FamilyEntry family{.doc =
                         "rope, rmsnorm with 1 + weight before and after each branch, qk_norm, geglu_tanh, tied head, "
                         "embedding_scale = sqrt(d_model), rope_theta = 1e6 in every sixth layer, in the others a "
                         "window of 1024 and rope_local_theta = 1e4"};
  family.defaults = [](ModelConfig& c) {
    family_entry(ModelConfig::Family::gemma2).defaults(c);
    c.attention_softcap = c.final_softcap = 0;
    c.rope_theta = 1e6;
    c.rope_local_theta = 10000;
    c.qk_norm = true;
    c.sliding_window = 1024;
    c.sliding_window_layers.clear();
    for (int64_t layer = 0; layer < c.n_layers; ++layer) {
      if (layer % 6 != 5) c.sliding_window_layers.push_back(layer);
    }
    if (c.n_layers < 6) c.sliding_window_layers.clear();  // all
  };
  family.shape = [](DecoderShape& s) { family_entry(ModelConfig::Family::gemma2).shape(s); };
  family.hugging_face = {.architecture = "Gemma3ForCausalLM",
                         .model_type = "gemma3_text",
                         .max_seq_len = 131072,
                         .n_kv_heads = 4,
                         .head_dim = 256,
                         .rope_theta = 1e6,
                         .tie_embeddings = true,
                         .windows = HuggingFaceFamily::Windows::five_of_six,
                         .attention_bias = true,
                         .pad_token_id = 0};
  return family;
}

}  // namespace llmtrain
