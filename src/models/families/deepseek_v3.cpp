// DeepSeek-V3 (DeepSeek-AI 2024, arXiv:2412.19437): DeepSeek-V2 with sigmoid scores, and a bias that balances the load
// of experts by their choice alone.

#include "models/models.hpp"

namespace llmtrain {

FamilyEntry family_deepseek_v3() {
  FamilyEntry family{
      .doc = "deepseek_v2 with latent queries, sigmoid scores, and 256 experts, of which a token uses 8 of 4 groups"};
  family.defaults = [](ModelConfig& c) {
    family_entry(ModelConfig::Family::deepseek_v2).defaults(c);
    c.latent.query_rank = 1536;
    c.experts.count = 256;
    c.experts.per_token = 8;
    c.experts.norm_topk = true;
    c.experts.score = ExpertsConfig::Score::sigmoid;
    c.experts.scale = 2.5;
    c.experts.groups = 8;
    c.experts.groups_per_token = 4;
    c.experts.dense_layers = {0, 1, 2};
    c.router_aux = 0;
  };
  family.shape = [](DecoderShape& s) {
    s.names = deepseek_names();
    s.names.selection_bias = "model.layers.{}.mlp.gate.e_score_correction_bias";
  };
  family.hugging_face = {
      .architecture = "DeepseekV3ForCausalLM", .max_seq_len = 4096, .n_kv_heads = 128, .latent = true};
  family.hugging_face.experts = HuggingFaceExperts{.count = "n_routed_experts",
                                                   .d_ff = "moe_intermediate_size",
                                                   .default_count = 256,
                                                   .default_per_token = 8,
                                                   .default_d_ff = 2048};
  return family;
}

}  // namespace llmtrain
