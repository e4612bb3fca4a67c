// Granite 3 (Granite team 2024): Llama with factors on the embedding, the outputs of branches, scores and logits.

#include "models/models.hpp"

namespace llmtrain {

namespace {

void defaults(ModelConfig& c) {
  llama_defaults(c);
  c.tie_embeddings = true;
  c.embedding_scale = 12;
  c.residual_multiplier = 0.22;
  c.logits_scaling = 8;
}

}  // namespace

FamilyEntry family_granite() {
  return {"llama with embedding_scale = 12, residual_multiplier = 0.22, logits_scaling = 8, tied head",
          defaults,
          [](DecoderShape& shape) { shape.names = llama_names(); },
          {.architecture = "GraniteForCausalLM", .attention_bias = true, .mlp_bias = true}};
}

}  // namespace llmtrain
