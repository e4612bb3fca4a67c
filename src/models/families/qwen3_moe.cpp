// Qwen3-MoE (Qwen team 2025, arXiv:2505.09388): Qwen3 with 128 experts in every layer, of which a token uses eight.

#include "models/models.hpp"

namespace llmtrain {

FamilyEntry family_qwen3_moe() {
  FamilyEntry family{.doc = "qwen3 with 128 experts, of which a token uses 8"};
  family.defaults = [](ModelConfig& c) {
    family_entry(ModelConfig::Family::qwen3).defaults(c);
    c.experts.count = 128;
    c.experts.per_token = 8;
    c.experts.norm_topk = true;
    c.router_aux = 0.001;
  };
  family.shape = [](DecoderShape& s) { s.names = qwen_expert_names(); };
  family.hugging_face = {
      .architecture = "Qwen3MoeForCausalLM", .max_seq_len = 32768, .n_kv_heads = 4, .attention_bias = true};
  family.hugging_face.experts = HuggingFaceExperts{.count = "num_experts",
                                                   .d_ff = "moe_intermediate_size",
                                                   .default_count = 128,
                                                   .default_per_token = 8,
                                                   .default_d_ff = 768,
                                                   .has_dense_layers = true};
  return family;
}

}  // namespace llmtrain
