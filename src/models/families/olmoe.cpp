// OLMoE (Muennighoff et al. 2024, arXiv:2409.02060): 64 experts in every layer, of which a token uses eight, and norms
// over the queries and keys of all heads.

#include "models/models.hpp"

namespace llmtrain {

FamilyEntry family_olmoe() {
  FamilyEntry family{.doc = "llama with qk_norm over all heads and 64 experts, of which a token uses 8"};
  family.defaults = [](ModelConfig& c) {
    llama_defaults(c);
    c.qk_norm = true;
    c.qk_norm_whole = true;
    c.experts.count = 64;
    c.experts.per_token = 8;
    c.router_aux = 0.01;
  };
  family.shape = [](DecoderShape& s) { s.names = qwen_expert_names(); };
  family.hugging_face = {.architecture = "OlmoeForCausalLM",
                         .max_seq_len = 4096,
                         .norm_epsilon = 1e-5,
                         .attention_bias = true,
                         .pad_token_id = 1};
  family.hugging_face.experts = HuggingFaceExperts{.count = "num_experts",
                                                   .d_ff = "intermediate_size",
                                                   .default_count = 64,
                                                   .default_per_token = 8,
                                                   .default_d_ff = 2048,
                                                   .default_router_aux = 0.01};
  return family;
}

}  // namespace llmtrain
