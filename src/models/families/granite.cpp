// Granite 3 (Granite team 2024): Llama with factors on the embedding, the outputs of branches, scores and logits.

#include "models/models.hpp"

namespace llmtrain {

FamilyEntry family_granite() {
  FamilyEntry family{.doc =
                         "llama with embedding_scale = 12, residual_multiplier = 0.22, logits_scaling = 8, tied head"};
  family.defaults = [](ModelConfig& c) {
    llama_defaults(c);
    c.tie_embeddings = true;
    c.embedding_scale = 12;
    c.residual_multiplier = 0.22;
    c.logits_scaling = 8;
  };
  family.hugging_face = {.architecture = "GraniteForCausalLM", .attention_bias = true, .mlp_bias = true};
  return family;
}

}  // namespace llmtrain
