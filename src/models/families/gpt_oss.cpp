// GPT-OSS (OpenAI 2025, arXiv:2508.10925): 32 or 128 experts in every layer, of which a token uses four, with biases
// and a limited SwiGLU; a window in every other layer, and sinks of attention.

#include "models/models.hpp"

namespace llmtrain {

FamilyEntry family_gpt_oss() {
  FamilyEntry family{.doc =
                         "mixtral with 32 experts, of which a token uses 4, biases, swiglu_oai with expert_limit = 7, "
                         "sinks of attention and a window of 128 in every other layer"};
  family.defaults = [](ModelConfig& c) {
    llama_defaults(c);
    c.activation = ModelConfig::Activation::swiglu_oai;
    c.rope_theta = 150000;
    c.qkv_bias = c.attention_output_bias = c.mlp_bias = true;
    c.attention_sinks = true;
    c.sliding_window = 128;
    c.sliding_window_layers.clear();
    for (int64_t layer = 0; layer < c.n_layers; layer += 2) c.sliding_window_layers.push_back(layer);
    c.experts.count = 32;
    c.experts.per_token = 4;
    c.experts.norm_topk = true;
    c.experts.limit = 7;
    c.router_aux = 0.001;
  };
  family.shape = [](DecoderShape& s) {
    // Names of experts' matrices are this program's alone: files have tensors of all experts.
    DecoderNames& n = s.names;
    n = qwen_expert_names();
    n.shared_gate = n.shared_up = n.shared_down = n.shared_router = "";
    n.router = "model.layers.{}.mlp.router";
    n.fused_first = "model.layers.{}.mlp.experts.gate_up_proj";
    n.fused_last = "model.layers.{}.mlp.experts.down_proj";
  };
  family.hugging_face = {.architecture = "GptOssForCausalLM",
                         .max_seq_len = 131072,
                         .n_kv_heads = 8,
                         .head_dim = 64,
                         .norm_epsilon = 1e-5,
                         .rope_theta = 150000,
                         .windows = HuggingFaceFamily::Windows::even_layers,
                         .window = 128,
                         .attention_bias = true};
  family.hugging_face.experts = HuggingFaceExperts{.count = "num_local_experts",
                                                   .d_ff = "intermediate_size",
                                                   .default_count = 128,
                                                   .default_per_token = 4,
                                                   .default_d_ff = 2880,
                                                   .has_norm_topk = false,
                                                   .has_biases = true};
  return family;
}

}  // namespace llmtrain
