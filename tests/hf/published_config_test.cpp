// Keys of config.json as the authors of models published them.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hf/config/config_json.hpp"
#include "hf/files.hpp"
#include "models/models.hpp"

namespace llmtrain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

HfConfig parse(const std::string& text) { return parse_hf_config(text, "config.json"); }
std::string refusal(const std::string& text) {
  return test::verdict(ExitCode::bad_content, [&] { parse(text); });
}

std::string small(const std::string& type, const std::string& architecture) {
  return fmt::format(
      R"({{"architectures":["{}"],"model_type":"{}","vocab_size":64,"hidden_size":48,)"
      R"("intermediate_size":80,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2}})",
      architecture, type);
}
std::string with(const std::string& base, const std::string& more) {
  return base.substr(0, base.size() - 1) + "," + more + "}";
}

// Excerpts of published files: nothing in them is unknown, and what Transformers computes with them is read.
TEST(PublishedConfig, OfEveryFamilyIsReadAsTransformersReadsIt) {
  const auto read = [](const std::string& text) {
    const HfConfig config = parse(text);
    EXPECT_THAT(config.warnings, IsEmpty()) << text;
    return config.model;
  };
  const ModelConfig pythia =
      read(R"({"architectures":["GPTNeoXForCausalLM"],"bos_token_id":0,"eos_token_id":0,"hidden_act":"gelu",)"
           R"("hidden_size":768,"initializer_range":0.02,"intermediate_size":3072,"layer_norm_eps":1e-05,)"
           R"("max_position_embeddings":2048,"model_type":"gpt_neox","num_attention_heads":12,"num_hidden_layers":12,)"
           R"("rotary_emb_base":10000,"rotary_pct":0.25,"tie_word_embeddings":false,"torch_dtype":"float16",)"
           R"("transformers_version":"4.24.0","use_cache":true,"use_parallel_residual":true,"vocab_size":50304})");
  EXPECT_TRUE(pythia.parallel_residual && pythia.qkv_bias && !pythia.shared_norm);
  EXPECT_EQ(pythia.partial_rotary_factor, 0.25);
  EXPECT_EQ(pythia.n_kv_heads, 12);
  const std::string falcon =
      R"({"alibi":false,"apply_residual_connection_post_layernorm":false,"architectures":["FalconForCausalLM"],)"
      R"("attention_dropout":0.0,"bias":false,"bos_token_id":11,"eos_token_id":11,"hidden_dropout":0.0,)"
      R"("hidden_size":4544,"initializer_range":0.02,"layer_norm_epsilon":1e-05,"model_type":"falcon",)"
      R"("multi_query":true,"new_decoder_architecture":false,"num_attention_heads":71,"num_hidden_layers":32,)"
      R"("parallel_attn":true,"torch_dtype":"bfloat16","use_cache":true,"vocab_size":65024})";
  const ModelConfig small_falcon = read(falcon);
  EXPECT_TRUE(small_falcon.parallel_residual && small_falcon.shared_norm && small_falcon.tie_embeddings);
  EXPECT_EQ(small_falcon.n_kv_heads, 1);
  EXPECT_EQ(small_falcon.d_ff, 18176);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = falcon;
    return text.replace(text.find(from), from.size(), to);
  };
  const ModelConfig large =
      read(changed(R"("new_decoder_architecture":false,"num_attention_heads":71)",
                   R"("new_decoder_architecture":true,"num_kv_heads":8,"num_attention_heads":8)"));
  EXPECT_TRUE(large.parallel_residual && !large.shared_norm);
  EXPECT_EQ(large.n_kv_heads, 8);
  EXPECT_THAT(refusal(changed(R"("alibi":false)", R"("alibi":true)")),
              HasSubstr("alibi: true: ALiBi is not supported"));
  EXPECT_THAT(refusal(with(changed(R"("new_decoder_architecture":false)", R"("new_decoder_architecture":true)"),
                           R"("num_kv_heads":3)")),
              HasSubstr("num_kv_heads: 3 does not fit the 71 heads"));
  const ModelConfig granite = read(with(
      small("granite", "GraniteForCausalLM"),
      R"("attention_bias":false,"attention_dropout":0.1,"attention_multiplier":0.015625,"embedding_multiplier":12.0,)"
      R"("logits_scaling":8.0,"mlp_bias":false,"residual_multiplier":0.22,"rope_scaling":null)"));
  EXPECT_EQ(granite.query_pre_attn_scalar, 4096);
  EXPECT_EQ(granite.embedding_scale, 12);
  EXPECT_EQ(granite.logits_scaling, 8);
  EXPECT_EQ(granite.residual_multiplier, 0.22);
  const ModelConfig smollm3 =
      read(with(small("smollm3", "SmolLM3ForCausalLM"),
                R"("layer_types":["full_attention","full_attention"],"max_window_layers":28,"mlp_bias":false,)"
                R"("no_rope_layer_interval":4,"no_rope_layers":[1,0],"rope_scaling":null,"rope_theta":5000000.0,)"
                R"("sliding_window":null,"use_sliding_window":false)"));
  EXPECT_THAT(smollm3.no_rope_layers, ElementsAre(1)) << "1 means with rope";
  EXPECT_THAT(refusal(with(small("smollm3", ""), R"("no_rope_layers":[1])")),
              HasSubstr("no_rope_layers: must be a list"));
  const ModelConfig gemma3 = read(with(
      small("gemma3_text", "Gemma3ForCausalLM"),
      R"("attn_logit_softcapping":null,"cache_implementation":"hybrid","final_logit_softcapping":null,"head_dim":12,)"
      R"("hidden_activation":"gelu_pytorch_tanh","query_pre_attn_scalar":256,"rope_local_base_freq":10000,)"
      R"("rope_scaling":{"factor":8.0,"rope_type":"linear"},"rope_theta":1000000,"sliding_window":512,)"
      R"("sliding_window_pattern":2)"));
  EXPECT_EQ(gemma3.rope_local_theta, 10000);
  EXPECT_EQ(gemma3.rope_scaling.factor, 8);
  EXPECT_THAT(gemma3.sliding_window_layers, ElementsAre(0));
  EXPECT_THAT(refusal(small("gemma3", "Gemma3ForConditionalGeneration")), HasSubstr("gemma3_text"));
  const ModelConfig starcoder2 =
      read(with(small("starcoder2", "Starcoder2ForCausalLM"),
                R"("embedding_dropout":0.1,"hidden_act":"gelu_pytorch_tanh","mlp_type":"default","norm_epsilon":1e-05,)"
                R"("norm_type":"layer_norm","residual_dropout":0.1,"sliding_window":4096,"use_bias":true)"));
  EXPECT_EQ(starcoder2.sliding_window, 4096);
  EXPECT_TRUE(starcoder2.qkv_bias && starcoder2.mlp_bias && starcoder2.tie_embeddings);
  const ModelConfig olmo2 = read(with(small("olmo2", "Olmo2ForCausalLM"), R"("rms_norm_eps":1e-06)"));
  EXPECT_TRUE(olmo2.qk_norm_whole && olmo2.sandwich_norm && !olmo2.input_norm);
}

}  // namespace
}  // namespace llmtrain
