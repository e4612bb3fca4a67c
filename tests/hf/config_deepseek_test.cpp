// config.json of DeepSeek-V2 and DeepSeek-V3.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hf/config/config_json.hpp"
#include "hf/files.hpp"
#include "models/models.hpp"

namespace llmtrain {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

HfConfig parse(const std::string& text) { return parse_hf_config(text, "config.json"); }
std::string refusal(const std::string& text) {
  return test::verdict(ExitCode::bad_content, [&] { parse(text); });
}

std::string with(const std::string& base, const std::string& more) {
  return base.substr(0, base.size() - 1) + "," + more + "}";
}

/// Excerpts of published files, as written by their authors.
const std::string v2_lite =
    R"({"architectures":["DeepseekV2ForCausalLM"],"attention_bias":false,"aux_loss_alpha":0.001,"bos_token_id":100000,)"
    R"("eos_token_id":100001,"first_k_dense_replace":1,"hidden_act":"silu","hidden_size":2048,"intermediate_size":10944,)"
    R"("kv_lora_rank":512,"max_position_embeddings":163840,"model_type":"deepseek_v2","moe_intermediate_size":1408,)"
    R"("moe_layer_freq":1,"n_group":1,"n_routed_experts":64,"n_shared_experts":2,"norm_topk_prob":false,)"
    R"("num_attention_heads":16,"num_experts_per_tok":6,"num_hidden_layers":27,"num_key_value_heads":16,)"
    R"("pretraining_tp":1,"q_lora_rank":null,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"rms_norm_eps":1e-06,)"
    R"("rope_scaling":{"beta_fast":32,"beta_slow":1,"factor":40,"mscale":0.707,"mscale_all_dim":0.707,)"
    R"("original_max_position_embeddings":4096,"type":"yarn"},"rope_theta":10000,"routed_scaling_factor":1.0,)"
    R"("scoring_func":"softmax","seq_aux":true,"tie_word_embeddings":false,"topk_group":1,"topk_method":"greedy",)"
    R"("v_head_dim":128,"vocab_size":102400})";
const std::string v3 =
    R"({"architectures":["DeepseekV3ForCausalLM"],"attention_bias":false,"bos_token_id":0,"eos_token_id":1,"ep_size":1,)"
    R"("first_k_dense_replace":3,"hidden_act":"silu","hidden_size":7168,"intermediate_size":18432,"kv_lora_rank":512,)"
    R"("max_position_embeddings":163840,"model_type":"deepseek_v3","moe_intermediate_size":2048,"moe_layer_freq":1,)"
    R"("n_group":8,"n_routed_experts":256,"n_shared_experts":1,"norm_topk_prob":true,"num_attention_heads":128,)"
    R"("num_experts_per_tok":8,"num_hidden_layers":61,"num_key_value_heads":128,"num_nextn_predict_layers":1,)"
    R"("q_lora_rank":1536,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"rms_norm_eps":1e-06,"rope_scaling":)"
    R"({"beta_fast":32,"beta_slow":1,"factor":40,"mscale":1.0,"mscale_all_dim":1.0,)"
    R"("original_max_position_embeddings":4096,"type":"yarn"},"rope_theta":10000,"routed_scaling_factor":2.5,)"
    R"("scoring_func":"sigmoid","tie_word_embeddings":false,"topk_group":4,"topk_method":"noaux_tc","v_head_dim":128,)"
    R"("vocab_size":129280})";
/// The keys that a file must have.
std::string least(int version) {
  return fmt::format(R"({{"model_type":"deepseek_v{}","vocab_size":64,"hidden_size":96,"intermediate_size":80,)"
                     R"("num_hidden_layers":4,"num_attention_heads":{}{}}})",
                     version, version == 2 ? 4 : 128, version == 2 ? R"(,"num_experts_per_tok":2)" : "");
}

int64_t parameters(const ModelConfig& config) {
  int64_t count = 0;
  for (const UnitSpec& unit : Decoder(decoder_shape(config, config.vocab_size)).units()) {
    for (const ParamSpec& param : unit.params) count += param.numel();
  }
  return count;
}

TEST(DeepSeekConfig, PublishedShapesHaveTheirPublishedNumberOfParameters) {
  EXPECT_EQ(parameters(parse(v2_lite).model), 15'706'484'224);
  EXPECT_EQ(parameters(parse(v3).model), 671'026'419'200);
  EXPECT_THAT(parse(v2_lite).warnings, IsEmpty());
  EXPECT_THAT(parse(v3).warnings, IsEmpty());
}

TEST(DeepSeekConfig, DefaultsAreThoseOfTransformers) {
  const ModelConfig two = parse(least(2)).model, three = parse(least(3)).model;
  for (const ModelConfig& c : {two, three}) {
    EXPECT_EQ(c.latent, (LatentConfig{1536, 512, 128, 64, 128, true}));
    EXPECT_EQ(c.head_dim, 192);
    EXPECT_EQ(c.n_kv_heads, c.n_heads);
    EXPECT_EQ(c.norm_epsilon, 1e-6);
    EXPECT_EQ(c.router_aux, 0);
  }
  EXPECT_EQ(two.max_seq_len, 2048);
  EXPECT_EQ(three.max_seq_len, 4096);
  using Score = ExpertsConfig::Score;
  const ExpertsConfig of_two{64, 2, 1407, 2814, false, false, Score::softmax, 1.0, 1, 1, {}, 1};
  const ExpertsConfig of_three{256, 8, 2048, 2048, false, true, Score::sigmoid, 2.5, 8, 4, {0, 1, 2}, 1};
  EXPECT_EQ(two.experts, of_two);
  EXPECT_EQ(three.experts, of_three);
  EXPECT_EQ(parse(with(least(3), R"("q_lora_rank":null)")).model.latent.query_rank, 0) << "null is not absent";
  EXPECT_FALSE(parse(with(least(3), R"("norm_topk_prob":null)")).model.experts.norm_topk);
  EXPECT_EQ(parse(with(least(3), R"("n_group":null,"topk_group":null)")).model.experts.groups, 1);
  EXPECT_EQ(parse(with(least(3), R"("head_dim":64)")).model.head_dim, 192) << "Transformers writes it so";
}

TEST(DeepSeekConfig, GreedyChoiceHasNoGroups) {
  const std::string groups = R"("n_group":4,"topk_group":2)";
  EXPECT_EQ(parse(with(least(2), groups)).model.experts.groups, 1);
  const ModelConfig c = parse(with(least(2), groups + R"(,"topk_method":"group_limited_greedy")")).model;
  EXPECT_EQ(c.experts.groups, 4);
  EXPECT_EQ(c.experts.groups_per_token, 2);
}

TEST(DeepSeekConfig, WhatIsNotUnderstoodIsRefusedByName) {
  EXPECT_EQ(refusal(least(2)), "accepted");
  EXPECT_EQ(refusal(least(3)), "accepted");
  for (const auto& [addition, message] : std::initializer_list<std::pair<std::string, std::string>>{
           {R"("quantization_config":{"quant_method":"fp8","fmt":"e4m3"})", "quantised ('fp8')"},
           {R"("attention_bias":true)", "attention_bias: true: biases of latent attention"},
           {R"("num_key_value_heads":64)", "num_key_value_heads: is 64, but every head"},
           {R"("v_head_dim":193)", "v_head_dim: values of 193 elements are wider than queries of 192"},
           {R"("kv_lora_rank":0)", "kv_lora_rank: must be an integer from 1"},
           {R"("qk_rope_head_dim":63)", "qk_rope_head_dim: rope rotates pairs"},
           {R"("qk_nope_head_dim":1000)", "qk_rope_head_dim: heads of 1064 elements are too wide"},
           {R"("n_group":7)", "n_group: 7 groups do not divide 256 experts"},
           {R"("n_group":2)", "topk_group: 4 is more than the 2 groups"},
           {R"("n_group":65)", "n_group: must be an integer from 1 to 64"},
           {R"("num_experts_per_tok":129)", "num_experts_per_tok: 129 is more than the 128 experts"},
           {R"("first_k_dense_replace":4)", "first_k_dense_replace: no layer has experts"},
           {R"("scoring_func":"softmax")", "scoring_func: 'softmax': other scores"},
           {R"("topk_method":"greedy")", "topk_method: 'greedy': another choice"},
           {R"("moe_layer_freq":2)", "moe_layer_freq: 2: dense layers between"}}) {
    EXPECT_THAT(refusal(with(least(3), addition)), HasSubstr(message)) << addition;
  }
  EXPECT_THAT(refusal(with(least(2), R"("topk_method":"noaux_tc")")), HasSubstr("must be greedy or"));
  EXPECT_THAT(refusal(with(least(2), R"("mlp_bias":true)")), HasSubstr("mlp_bias: true"));
  EXPECT_THAT(refusal(R"({"model_type":"deepseek_v2","vocab_size":64,"hidden_size":96,"intermediate_size":80,)"
                      R"("num_hidden_layers":4,"num_attention_heads":4})"),
              HasSubstr("num_experts_per_tok: is missing"));
}

TEST(DeepSeekConfig, WhatIsWrittenIsReadAgain) {
  const std::string groups = R"("n_group":4,"topk_group":2,"topk_method":"group_limited_greedy")";
  for (const std::string& text : {v2_lite, v3, least(2), least(3), with(least(2), groups),
                                  with(least(3), R"("rope_interleave":false,"q_lora_rank":null,"n_group":1,)"
                                                 R"("topk_group":1,"n_shared_experts":0)")}) {
    EXPECT_EQ(hf_config_obstacle(parse(text).model), "") << text;
  }
  ModelConfig model = parse(least(2)).model;
  model.latent.interleaved = false;
  EXPECT_THAT(hf_config_obstacle(model), HasSubstr("no deepseek_v2 model with model.rope_interleave = false"));
  model = parse(least(3)).model;
  model.experts.d_ff_shared += 1;
  EXPECT_THAT(hf_config_obstacle(model), HasSubstr("model.d_ff_shared = 2049"));
}

}  // namespace
}  // namespace llmtrain
