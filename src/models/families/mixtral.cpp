// Mixtral (Jiang et al. 2024, arXiv:2401.04088): Mistral with eight experts in every layer, of which a token uses two.

#include "models/models.hpp"

namespace llmtrain {

FamilyEntry family_mixtral() {
  FamilyEntry family{.doc = "llama with 8 experts, of which a token uses 2, rope_theta = 1e6"};
  family.defaults = [](ModelConfig& c) {
    llama_defaults(c);
    c.rope_theta = 1e6;
    c.experts.count = 8;
    c.experts.per_token = 2;
    c.experts.norm_topk = true;
    c.router_aux = 0.001;
  };
  family.shape = [](DecoderShape& s) {
    DecoderNames& n = s.names;
    n = llama_names();
    n.router = "model.layers.{}.block_sparse_moe.gate";
    n.expert_gate = "model.layers.{}.block_sparse_moe.experts.{}.w1";
    n.expert_up = "model.layers.{}.block_sparse_moe.experts.{}.w3";
    n.expert_down = "model.layers.{}.block_sparse_moe.experts.{}.w2";
  };
  family.hugging_face = {.architecture = "MixtralForCausalLM",
                         .max_seq_len = 131072,
                         .n_kv_heads = 8,
                         .norm_epsilon = 1e-5,
                         .rope_theta = 1e6,
                         .windows = HuggingFaceFamily::Windows::all_layers,
                         .window = 0};
  family.hugging_face.experts = HuggingFaceExperts{.count = "num_local_experts",
                                                   .d_ff = "intermediate_size",
                                                   .default_count = 8,
                                                   .default_per_token = 2,
                                                   .default_d_ff = 14336,
                                                   .has_norm_topk = false};
  return family;
}

}  // namespace llmtrain
