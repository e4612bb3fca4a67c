// Mistral 7B (Jiang et al. 2023): Llama with a sliding window. Later versions have none.

#include "models/models.hpp"

namespace llmtrain {

FamilyEntry family_mistral() {
  FamilyEntry family{.doc = "llama with a sliding_window of 4096"};
  family.defaults = [](ModelConfig& c) {
    llama_defaults(c);
    c.sliding_window = 4096;
  };
  family.hugging_face = {.architecture = "MistralForCausalLM",
                         .max_seq_len = 131072,
                         .n_kv_heads = 8,
                         .windows = HuggingFaceFamily::Windows::listed_layers};
  return family;
}

}  // namespace llmtrain
