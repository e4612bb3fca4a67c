// Qwen1.5-MoE and Qwen2-MoE (Qwen team 2024, arXiv:2407.10671): Qwen2 with small experts, and one that every token uses
// behind a gate.

#include "models/models.hpp"

namespace llmtrain {

DecoderNames qwen_expert_names() {
  DecoderNames n = llama_names();
  n.router = "model.layers.{}.mlp.gate";
  n.expert_gate = "model.layers.{}.mlp.experts.{}.gate_proj";
  n.expert_up = "model.layers.{}.mlp.experts.{}.up_proj";
  n.expert_down = "model.layers.{}.mlp.experts.{}.down_proj";
  n.shared_gate = "model.layers.{}.mlp.shared_expert.gate_proj";
  n.shared_up = "model.layers.{}.mlp.shared_expert.up_proj";
  n.shared_down = "model.layers.{}.mlp.shared_expert.down_proj";
  n.shared_router = "model.layers.{}.mlp.shared_expert_gate";
  return n;
}

FamilyEntry family_qwen2_moe() {
  FamilyEntry family{.doc = "qwen2 with 60 experts, of which a token uses 4, and a shared one with a gate"};
  family.defaults = [](ModelConfig& c) {
    family_entry(ModelConfig::Family::qwen2).defaults(c);
    c.experts.count = 60;
    c.experts.per_token = 4;
    c.experts.d_ff_shared = c.d_ff;
    c.experts.shared_gate = true;
    c.router_aux = 0.001;
  };
  family.shape = [](DecoderShape& s) { s.names = qwen_expert_names(); };
  family.hugging_face = {.architecture = "Qwen2MoeForCausalLM",
                         .max_seq_len = 32768,
                         .n_kv_heads = 16,
                         .windows = HuggingFaceFamily::Windows::last_layers};
  family.hugging_face.experts = HuggingFaceExperts{.count = "num_experts",
                                                   .d_ff = "moe_intermediate_size",
                                                   .default_count = 60,
                                                   .default_per_token = 4,
                                                   .default_d_ff = 1408,
                                                   .default_d_ff_shared = 5632,
                                                   .has_dense_layers = true};
  return family;
}

}  // namespace llmtrain
