// DeepSeek-V2 (DeepSeek-AI 2024, arXiv:2405.04434): latent attention, and small experts beside shared ones. Defaults
// are those of DeepSeek-V2-Lite.

#include "models/models.hpp"

namespace llmtrain {

DecoderNames deepseek_names() {
  DecoderNames n = qwen_expert_names();
  n.shared_gate = "model.layers.{}.mlp.shared_experts.gate_proj";
  n.shared_up = "model.layers.{}.mlp.shared_experts.up_proj";
  n.shared_down = "model.layers.{}.mlp.shared_experts.down_proj";
  n.query = "model.layers.{}.self_attn.q_proj";
  n.query_low = "model.layers.{}.self_attn.q_a_proj";
  n.query_low_norm = "model.layers.{}.self_attn.q_a_layernorm";
  n.query_high = "model.layers.{}.self_attn.q_b_proj";
  n.key_low = "model.layers.{}.self_attn.kv_a_proj_with_mqa";
  n.key_low_norm = "model.layers.{}.self_attn.kv_a_layernorm";
  n.key_high = "model.layers.{}.self_attn.kv_b_proj";
  return n;
}

FamilyEntry family_deepseek_v2() {
  FamilyEntry family{.doc = "llama with latent attention, 64 experts, of which a token uses 6, and a shared one"};
  family.defaults = [](ModelConfig& c) {
    llama_defaults(c);
    c.norm_epsilon = 1e-6;
    c.latent = {.query_rank = 0, .rank = 512, .plain = 128, .rotated = 64, .value = 128};
    c.experts.count = 64;
    c.experts.per_token = 6;
    c.experts.dense_layers = {0};
    c.router_aux = 0.001;
  };
  family.shape = [](DecoderShape& s) { s.names = deepseek_names(); };
  family.hugging_face = {.architecture = "DeepseekV2ForCausalLM", .latent = true};
  family.hugging_face.experts = HuggingFaceExperts{.count = "n_routed_experts",
                                                   .d_ff = "moe_intermediate_size",
                                                   .default_count = 64,
                                                   .default_per_token = {},
                                                   .default_d_ff = 1407};
  return family;
}

}  // namespace llmtrain
