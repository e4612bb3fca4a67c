#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "hf/config/config_json.hpp"
#include "hf/files.hpp"
#include "models/models.hpp"

namespace llmtrain {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

HfConfig parse(const std::string& text) { return parse_hf_config(text, "config.json"); }
std::string refusal(const std::string& text) {
  return test::verdict(ExitCode::bad_content, [&] { parse(text); });
}

/// Excerpts of published models' files, as written by their authors.
std::string llama(int64_t vocabulary, int64_t width, int64_t ff, int64_t layers, int64_t heads, int64_t kv_heads,
                  const std::string& more = "") {
  return fmt::format(
      R"({{"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":{},"hidden_size":{},)"
      R"("intermediate_size":{},"num_hidden_layers":{},"num_attention_heads":{},"num_key_value_heads":{}{}{}}})",
      vocabulary, width, ff, layers, heads, kv_heads, more.empty() ? "" : ",", more);
}
std::string as_family(std::string text, const std::string& type, const std::string& architecture) {
  const auto replace = [&](const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
  };
  replace("\"llama\"", "\"" + type + "\"");
  replace("LlamaForCausalLM", architecture);
  return text;
}
std::string mistral(const std::string& base) { return as_family(base, "mistral", "MistralForCausalLM"); }
std::string qwen2(const std::string& base) { return as_family(base, "qwen2", "Qwen2ForCausalLM"); }
std::string qwen3(const std::string& base) { return as_family(base, "qwen3", "Qwen3ForCausalLM"); }
std::string gemma2(const std::string& base) { return as_family(base, "gemma2", "Gemma2ForCausalLM"); }
std::string phi3(const std::string& base) { return as_family(base, "phi3", "Phi3ForCausalLM"); }
std::string gpt2(int64_t width, int64_t layers, int64_t heads, const std::string& more = "") {
  return fmt::format(R"({{"architectures":["GPT2LMHeadModel"],"model_type":"gpt2","vocab_size":50257,"n_ctx":1024,)"
                     R"("n_positions":1024,"n_embd":{},"n_layer":{},"n_head":{}{}{}}})",
                     width, layers, heads, more.empty() ? "" : ",", more);
}

int64_t parameters(const std::string& text) {
  const ModelConfig config = parse(text).model;
  int64_t count = 0;
  for (const UnitSpec& unit : Decoder(decoder_shape(config, config.vocab_size)).units()) {
    for (const ParamSpec& param : unit.params) count += param.numel();
  }
  return count;
}

TEST(HfConfig, PublishedShapesHaveTheirPublishedNumberOfParameters) {
  EXPECT_EQ(parameters(gpt2(768, 12, 12)), 124'439'808);
  EXPECT_EQ(parameters(gpt2(1024, 24, 16)), 354'823'168);
  EXPECT_EQ(parameters(gpt2(1280, 36, 20)), 774'030'080);
  EXPECT_EQ(parameters(gpt2(1600, 48, 25)), 1'557'611'200);
  EXPECT_EQ(parameters(llama(32000, 4096, 11008, 32, 32, 32)), 6'738'415'616);
  EXPECT_EQ(parameters(llama(128256, 4096, 14336, 32, 32, 8)), 8'030'261'248);
  const std::string tied = R"("tie_word_embeddings":true)";
  EXPECT_EQ(parameters(llama(128256, 2048, 8192, 16, 32, 8, tied)), 1'235'814'400);
  EXPECT_EQ(parameters(llama(128256, 3072, 8192, 28, 24, 8, tied + R"(,"head_dim":128)")), 3'212'749'824);
  EXPECT_EQ(parameters(mistral(llama(32000, 4096, 14336, 32, 32, 8))), 7'241'732'096);
  EXPECT_EQ(parameters(mistral(llama(32768, 4096, 14336, 32, 32, 8))), 7'248'023'552);
  EXPECT_EQ(parameters(qwen2(llama(151936, 896, 4864, 24, 14, 2, tied))), 494'032'768);
  EXPECT_EQ(parameters(qwen2(llama(151936, 1536, 8960, 28, 12, 2, tied))), 1'543'714'304);
  EXPECT_EQ(parameters(qwen2(llama(152064, 3584, 18944, 28, 28, 4))), 7'615'616'512);
  EXPECT_EQ(parameters(qwen3(llama(151936, 1024, 3072, 28, 16, 8, tied + R"(,"head_dim":128)"))), 596'049'920);
  EXPECT_EQ(parameters(qwen3(llama(151936, 4096, 12288, 36, 32, 8, R"("head_dim":128)"))), 8'190'735'360);
}

const std::string small = llama(64, 48, 80, 2, 4, 2);

TEST(HfConfig, DefaultsAreThoseOfTransformers) {
  const ModelConfig l = parse(small).model;
  EXPECT_EQ(l.head_dim, 12);
  EXPECT_EQ(l.max_seq_len, 2048);
  EXPECT_EQ(l.norm_epsilon, 1e-6);
  EXPECT_EQ(l.rope_theta, 10000);
  EXPECT_EQ(l.activation, ModelConfig::Activation::swiglu);
  EXPECT_FALSE(l.tie_embeddings);
  EXPECT_FALSE(l.qkv_bias);
  EXPECT_EQ(l.sliding_window, 0);
  EXPECT_EQ(parse(mistral(small)).model.sliding_window, 4096);
  const ModelConfig q = parse(qwen2(small)).model;
  EXPECT_TRUE(q.qkv_bias);
  EXPECT_FALSE(q.attention_output_bias);
  EXPECT_EQ(q.sliding_window, 0);
  const ModelConfig q3 = parse(qwen3(small)).model;
  EXPECT_TRUE(q3.qk_norm);
  EXPECT_EQ(q3.head_dim, 128);
  const ModelConfig g = parse(gemma2(small)).model;
  EXPECT_EQ(g.head_dim, 256);
  EXPECT_EQ(g.query_pre_attn_scalar, 256);
  EXPECT_EQ(g.attention_softcap, 50);
  EXPECT_EQ(g.final_softcap, 30);
  EXPECT_EQ(g.embedding_scale, std::sqrt(48.0));
  EXPECT_EQ(g.activation, ModelConfig::Activation::geglu_tanh);
  EXPECT_TRUE(g.tie_embeddings && g.sandwich_norm && g.zero_centered_norm);
  EXPECT_EQ(g.sliding_window, 4096);
  EXPECT_THAT(g.sliding_window_layers, ElementsAre(0));
  EXPECT_EQ(parse(phi3(small)).model.norm_epsilon, 1e-5);
  const ModelConfig gp = parse(gpt2(48, 2, 4)).model;
  EXPECT_EQ(gp.d_ff, 192);
  EXPECT_TRUE(gp.tie_embeddings && gp.bias && gp.qkv_bias && gp.mlp_bias);
  EXPECT_EQ(gp.activation, ModelConfig::Activation::gelu_tanh);
  EXPECT_EQ(gp.max_seq_len, 1024);
}

std::string with(const std::string& base, const std::string& more) {
  return base.substr(0, base.size() - 1) + "," + more + "}";
}

TEST(HfConfig, RopeOfBothStyles) {
  const auto rope = [](const std::string& text) { return parse(text).model; };
  for (const std::string& style :
       {std::string(
            R"("rope_theta":500000.0,"rope_scaling":{"factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,)"
            R"("original_max_position_embeddings":8192,"rope_type":"llama3"})"),
        std::string(R"("rope_parameters":{"rope_theta":500000.0,"factor":8.0,"low_freq_factor":1.0,)"
                    R"("high_freq_factor":4.0,"original_max_position_embeddings":8192,"rope_type":"llama3"})")}) {
    const ModelConfig c = rope(with(small, style));
    EXPECT_EQ(c.rope_theta, 500000);
    EXPECT_EQ(c.rope_scaling.kind, RopeScaling::Kind::llama3);
    EXPECT_EQ(c.rope_scaling.factor, 8);
    EXPECT_EQ(c.rope_scaling.original_max_position_embeddings, 8192);
    EXPECT_EQ(c.rope_scaling.high_freq_factor, 4);
  }
  EXPECT_EQ(rope(with(small, R"("rope_scaling":null,"rope_theta":1e6)")).rope_theta, 1e6);
  EXPECT_EQ(rope(with(small, R"("rope_parameters":{"rope_type":"default","rope_theta":5})")).rope_theta, 5);
  EXPECT_EQ(rope(with(small, R"("rope_scaling":{"type":"linear","factor":2})")).rope_scaling.kind,
            RopeScaling::Kind::linear);
  const ModelConfig yarn = rope(with(qwen2(small), R"("rope_scaling":{"type":"yarn","factor":4.0,)"
                                                   R"("original_max_position_embeddings":32768})"));
  EXPECT_EQ(yarn.rope_scaling.kind, RopeScaling::Kind::yarn);
  EXPECT_EQ(yarn.rope_scaling.beta_fast, 32);
  const std::string six = "[1,1,1,1,1,2.5]";
  const ModelConfig phi = rope(with(phi3(small), R"("original_max_position_embeddings":4096,"max_position_embeddings":)"
                                                 R"(131072,"rope_scaling":{"type":"su","short_factor":)" +
                                                     six + R"(,"long_factor":)" + six + "}"));
  EXPECT_EQ(phi.rope_scaling.kind, RopeScaling::Kind::longrope);
  EXPECT_EQ(phi.rope_scaling.original_max_position_embeddings, 4096);
  EXPECT_EQ(phi.rope_scaling.long_factor.back(), 2.5);
  EXPECT_EQ(rope(with(phi3(small), R"("partial_rotary_factor":0.5)")).partial_rotary_factor, 0.5);

  EXPECT_THAT(refusal(with(small, R"("rope_scaling":{"rope_type":"mrope","mrope_section":[1]})")),
              HasSubstr("rope_scaling.rope_type: 'mrope' must be"));
  EXPECT_THAT(refusal(with(small, R"("rope_parameters":{"full_attention":{"rope_type":"default"}})")),
              HasSubstr("rope_parameters.full_attention"));
  EXPECT_THAT(refusal(with(small, R"("rope_scaling":{"rope_type":"linear"})")), HasSubstr("linear needs a factor"));
  EXPECT_THAT(refusal(with(small, R"("rope_scaling":{"rope_type":"linear","factor":0})")),
              HasSubstr("rope_scaling.factor"));
  EXPECT_THAT(refusal(with(small, R"("rope_scaling":[1])")), HasSubstr("rope_scaling: must be an object"));
  EXPECT_THAT(refusal(with(small, R"("rope_scaling":{"type":"linear","factor":2},"rope_parameters":{})")),
              HasSubstr("contradicts rope_parameters"));
  // Without scaling, the other families of Transformers do not read it.
  for (const char* place : {R"("partial_rotary_factor":0.5)", R"("rope_parameters":{"partial_rotary_factor":0.5})"}) {
    EXPECT_EQ(rope(with(small, place)).partial_rotary_factor, 1);
    EXPECT_THAT(parse(with(small, place)).warnings, ElementsAre(HasSubstr("'partial_rotary_factor'")));
  }
  EXPECT_THAT(refusal(with(small, R"("partial_rotary_factor":0.5,"rope_scaling":{"type":"linear","factor":2})")),
              HasSubstr("only phi3"));
}

TEST(HfConfig, RopeThetaIsTheFamilysUnlessItIsGiven) {
  for (const std::string_view family : enum_names<ModelConfig::Family>) {
    if (family == "gpt2") continue;
    const std::map<std::string_view, double> others = {
        {"mixtral", 1e6}, {"gpt_oss", 150000}, {"smollm3", 2e6}, {"gemma3", 1e6}};
    const double theta = others.contains(family) ? others.at(family) : 10000;
    const std::string type = family == "gemma3" ? "gemma3_text" : std::string(family);
    const std::string key = family == "gpt_neox" ? "rotary_emb_base" : "rope_theta";
    const std::string least =
        as_family(llama(64, 48, 80, 4, 4, 4, R"("num_experts_per_tok":2,"rotary_pct":0.5)"), type, "");
    EXPECT_EQ(parse(least).model.rope_theta, theta) << family;
    EXPECT_EQ(parse(with(least, R"("rope_parameters":{"rope_type":"default"})")).model.rope_theta, theta) << family;
    EXPECT_EQ(parse(with(least, "\"" + key + "\":500")).model.rope_theta, 500) << family;
  }
}

TEST(HfConfig, NumbersOfExpertsHaveLimits) {
  const auto text = [](int64_t experts, int64_t layers) {
    const std::string more = fmt::format(R"("num_local_experts":{},"n_routed_experts":{})", experts, experts);
    return llama(64, 48, 80, layers, 4, 4, R"("num_experts_per_tok":2,)" + more);
  };
  for (const char* family : {"mixtral", "qwen3_moe", "gpt_oss", "deepseek_v2", "deepseek_v3"}) {
    const auto of = [&](int64_t experts, int64_t layers) {
      return refusal(as_family(text(experts, layers), family, ""));
    };
    EXPECT_EQ(of(4096, 32), "accepted");
    EXPECT_THAT(of(4096, 33), HasSubstr("experts: 4096 experts in 33 layers are more than 131072 in all")) << family;
    EXPECT_THAT(of(4097, 4), HasSubstr("experts: must be an integer from 1 to 4096, not 4097")) << family;
  }
}

TEST(HfConfig, WindowsOfLayers) {
  const auto model = [](const std::string& text) { return parse(text).model; };
  EXPECT_EQ(model(with(mistral(small), R"("sliding_window":null)")).sliding_window, 0);
  EXPECT_EQ(model(with(mistral(small), R"("sliding_window":7)")).sliding_window, 7);
  const auto layers = [&](const std::string& types) {
    return model(with(mistral(small), R"("sliding_window":7,"layer_types":)" + types));
  };
  EXPECT_EQ(layers(R"(["full_attention","attention"])").sliding_window, 0);
  EXPECT_EQ(layers("null").sliding_window, 7);
  EXPECT_TRUE(layers(R"(["sliding_attention","sliding_attention"])").sliding_window_layers.empty());
  EXPECT_THAT(layers(R"(["full_attention","sliding_attention"])").sliding_window_layers, ElementsAre(1));
  EXPECT_THAT(refusal(with(mistral(small), R"("layer_types":[])")), HasSubstr("0 entries for 2 layers"));
  const std::string unread = R"("layer_types":["sliding_attention","full_attention"])";
  EXPECT_THAT(parse(with(small, unread)).warnings, ElementsAre(HasSubstr("'layer_types'")));
  EXPECT_EQ(model(with(phi3(small), R"("sliding_window":7,)" + unread)).sliding_window_layers.size(), 0U);
  EXPECT_THAT(parse(with(small, R"("layer_types":["full_attention","full_attention"])")).warnings, IsEmpty());
  const std::string used = R"("use_sliding_window":true,"sliding_window":16)";
  EXPECT_EQ(model(with(qwen2(small), used)).sliding_window, 0);  // no layer is at or above the 28th
  const ModelConfig upper = model(with(qwen2(small), used + R"(,"max_window_layers":1)"));
  EXPECT_EQ(upper.sliding_window, 16);
  EXPECT_THAT(upper.sliding_window_layers, ElementsAre(1));
  const ModelConfig all = model(with(qwen2(small), used + R"(,"max_window_layers":0)"));
  EXPECT_EQ(all.sliding_window, 16);
  EXPECT_TRUE(all.sliding_window_layers.empty());
  const std::string types = R"("layer_types":["sliding_attention","full_attention"])";
  EXPECT_THAT(model(with(qwen3(small), used + "," + types)).sliding_window_layers, ElementsAre(0));
  EXPECT_THAT(refusal(with(qwen3(small), types)), HasSubstr("layer_types: names sliding layers"));
  EXPECT_THAT(refusal(with(qwen3(small), R"("layer_types":["full_attention"])")), HasSubstr("1 entries for 2 layers"));
  EXPECT_THAT(refusal(with(qwen3(small), R"("layer_types":["full_attention","mamba"])")), HasSubstr("'mamba'"));
}

TEST(HfConfig, LayersWithoutExperts) {
  for (const char* family : {"qwen2_moe", "qwen3_moe"}) {
    const auto text = [&](const std::string& layers, int64_t every) {
      const std::string more = fmt::format(R"("mlp_only_layers":{},"decoder_sparse_step":{})", layers, every);
      return as_family(llama(256, 32, 64, 6, 4, 2, more), family, "");
    };
    const auto with_experts = [&](const std::string& layers, int64_t every) {
      const ModelConfig model = parse(text(layers, every)).model;
      EXPECT_EQ(hf_config_obstacle(model), "");
      std::vector<int64_t> found;
      for (int64_t layer = 0; layer < 6; ++layer) {
        if (model.experts.in_layer(layer)) found.push_back(layer);
      }
      return found;
    };
    EXPECT_THAT(with_experts("[]", 1), ElementsAre(0, 1, 2, 3, 4, 5));
    EXPECT_THAT(with_experts("[4, 9, 1]", 1), ElementsAre(0, 2, 3, 5));
    EXPECT_THAT(with_experts("[3, 0]", 2), ElementsAre(1, 5));
    EXPECT_THAT(refusal(text("[0, \"1\"]", 1)), HasSubstr("mlp_only_layers: must be a list of layers"));
    EXPECT_THAT(refusal(text("[1, 3, 5]", 2)), HasSubstr("no layer has experts"));
  }
}

TEST(HfConfig, WhatIsNotUnderstoodIsRefusedByName) {
  const std::map<std::string, std::string> additions = {
      {R"("quantization_config":{"quant_method":"aqlm","bits":4})", "quantised ('aqlm')"},
      {R"("quantization_config":{"quant_method":"bitsandbytes","bnb_4bit_quant_type":"af4"})",
       "must be nf4 or fp4, not 'af4'"},
      {R"("is_causal":false)", "is_causal: false: only causal attention is supported"},
      {R"("is_causal":null)", "is_causal: must be true or false, not null"},
      {R"("per_layer_config":{"1":{"num_key_value_heads":1}})", "per_layer_config"},
      {R"("hidden_act":"relu2")", "hidden_act: 'relu2'"},
      {R"("is_encoder_decoder":true)", "only decoders are supported"},
      {R"("tie_word_embeddings":1)", "tie_word_embeddings: must be true or false, not 1"},
      {R"("max_position_embeddings":0)", "max_position_embeddings: must be an integer from 1 to 16777216, not 0"},
      {R"("max_position_embeddings":2.5)", "max_position_embeddings"},
      {R"("rms_norm_eps":-1)", "rms_norm_eps: must be a number above 0, not -1"},
      {R"("initializer_range":"x")", "initializer_range"},
      {R"("eos_token_id":[1,"x"])", "eos_token_id: must be a list of token ids"},
  };
  EXPECT_EQ(refusal(small), "accepted");
  for (const auto& [addition, message] : additions) {
    EXPECT_THAT(refusal(with(small, addition)), AllOf(HasSubstr("config.json: "), HasSubstr(message))) << addition;
  }
  EXPECT_EQ(refusal(with(small, R"("is_causal":true,"per_layer_config":{})")), "accepted");
  EXPECT_THAT(refusal(with(gemma2(small), R"("use_bidirectional_attention":true)")), HasSubstr("only causal"));
  EXPECT_THAT(refusal(gpt2(48, 2, 4, R"("add_cross_attention":true)")), HasSubstr("cross-attention"));
  EXPECT_THAT(refusal(R"({"model_type":"bloom"})"), HasSubstr("model_type 'bloom' is not supported"));
  EXPECT_THAT(refusal(R"({"model_type":"llama4","architectures":["Llama4ForCausalLM"]})"),
              HasSubstr("did you mean llama"));
  EXPECT_THAT(refusal("{}"), HasSubstr("neither model_type nor architectures"));
  EXPECT_THAT(refusal("[]"), HasSubstr("not an object"));
  EXPECT_THAT(refusal(R"({"model_type":"llama","hidden_size":8})"),
              AllOf(HasSubstr("vocab_size: is missing"), HasSubstr("num_hidden_layers: is missing")));
  EXPECT_THAT(refusal(llama(64, 48, 80, 2, 5, 5)), HasSubstr("5 heads must divide hidden_size"));
  EXPECT_THAT(refusal(llama(64, 48, 80, 2, 4, 3)), HasSubstr("3 must divide the 4 heads"));
  EXPECT_THAT(refusal(gpt2(48, 2, 4, R"("scale_attn_weights":false)")), HasSubstr("scale_attn_weights: false"));
  EXPECT_THAT(refusal(gpt2(48, 2, 4, R"("scale_attn_by_inverse_layer_idx":true)")), HasSubstr("scaled by layer"));
}

TEST(HfConfig, BothNamesOfTheNumberOfExpertsAgree) {
  const std::string base = as_family(llama(64, 32, 48, 2, 4, 2), "mixtral", "MixtralForCausalLM");
  EXPECT_EQ(parse(with(base, R"("num_local_experts":4,"num_experts":4)")).model.experts.count, 4);
  EXPECT_EQ(parse(with(base, R"("num_experts":4)")).model.experts.count, 4);
  EXPECT_THAT(refusal(with(base, R"("num_local_experts":4,"num_experts":8)")),
              HasSubstr("num_experts: is 8, but must agree with num_local_experts = 4"));
}

// Transformers computes the same with and without each of these; tests/reference/make_folder_goldens.py has them.
TEST(HfConfig, KeysThatNothingReadsAreOneWarning) {
  const auto warnings = [](const std::string& text) { return parse(text).warnings; };
  for (const char* known : {R"("xla_device":null,"eos_token_ids":null)", R"("quantization_config":null)",
                            R"("pruned_heads":{},"pretraining_tp":2,"task_specific_params":{"a":{"b":1}})",
                            R"("rope_scaling":{"type":"yarn","factor":2,"finetuned":true,"low_freq_factor":1})"}) {
    EXPECT_THAT(warnings(with(small, known)), IsEmpty()) << known;
  }
  const std::string many = R"("num_experts":8,"rms_norm_epss":1e-5,"sliding_window":5,)"
                           R"("rope_scaling":{"type":"linear","factor":2,"colour":1})";
  EXPECT_THAT(warnings(with(small, many)),
              ElementsAre(AllOf(StartsWith("config.json: these keys are not known"), HasSubstr("'num_experts'"),
                                HasSubstr("'rms_norm_epss' (did you mean rms_norm_eps?)"),
                                HasSubstr("'sliding_window'"), HasSubstr("rope_scaling.'colour'"))));
  EXPECT_EQ(parse(with(small, many)).model.sliding_window, 0);
  for (const auto& [key, silent, named] : std::vector<std::array<std::string, 3>>{
           {"add_cross_attention", "false", "true"},
           {"compression_config", "null", R"({"quant_method":"compressed-tensors"})"},
           {"pruned_heads", "{}", R"({"0":[1]})"},
           {"rope_interleaved", "false", "true"},
           {"use_bidirectional_attention", "false", "true"},
           {"use_mrope", "false", "true"}}) {
    const std::string start = '"' + key + "\":";
    EXPECT_THAT(warnings(with(small, start + named)), ElementsAre(HasSubstr("'" + key + "'")));
    if (silent == "null") continue;
    EXPECT_THAT(warnings(with(small, start + silent)), IsEmpty());
  }
  // A family that has no such key computes what it computes anyway.
  EXPECT_TRUE(parse(with(qwen2(small), R"("attention_bias":false)")).model.qkv_bias);
  EXPECT_THAT(warnings(with(qwen2(small), R"("attention_bias":false)")), ElementsAre(HasSubstr("'attention_bias'")));
  EXPECT_THAT(warnings(with(mistral(small), R"("attention_bias":false,"mlp_bias":false)")), IsEmpty());
  std::string hundred = R"("key0":0)";
  for (int i = 1; i < 100; ++i) hundred += fmt::format(R"(,"key{}":0)", i);
  EXPECT_THAT(warnings(with(small, hundred)), ElementsAre(HasSubstr("and 84 more")));
  // Published before Transformers supported the model: the code is the stock one.
  const std::string code = R"("auto_map":{"AutoConfig":"configuration_phi3.Phi3Config","AutoModelForCausalLM":)"
                           R"("modeling_phi3.Phi3ForCausalLM"})";
  EXPECT_THAT(warnings(with(phi3(small), code)), IsEmpty());
  EXPECT_THAT(warnings(with(small, code)), ElementsAre(HasSubstr("auto_map: the model's custom code")));
}

TEST(HfConfig, ModelTypeDecidesWhateverTheArchitecturesAre) {
  const auto warnings = [](const std::string& architecture) {
    return parse(as_family(small, "llama", architecture)).warnings;
  };
  for (const char* name : {"LLaMAForCausalLM", "LlamaModel", "LLaMaForCausalLM"}) {
    EXPECT_THAT(warnings(name), IsEmpty()) << name;
  }
  for (const char* name : {"LlamaForQuestionAnswering", "XverseForCausalLM", "LlamaMoEForCausalLM"}) {
    EXPECT_THAT(warnings(name), ElementsAre(AllOf(HasSubstr(name), HasSubstr("read as LlamaForCausalLM")))) << name;
  }
  const auto without_type = [](const std::string& architectures) {
    std::string text = small;
    text.replace(text.find("\"LlamaForCausalLM\""), 18, architectures);
    const std::string type = R"("model_type":"llama",)";
    return text.erase(text.find(type), type.size());
  };
  EXPECT_EQ(parse(without_type(R"("LLaMAForCausalLM")")).model.family, ModelConfig::Family::llama);
  EXPECT_THAT(refusal(without_type(R"("Llama4ForCausalLM")")),
              HasSubstr("architecture 'Llama4ForCausalLM' is not supported"));
  EXPECT_THAT(refusal(without_type("")), HasSubstr("neither model_type nor architectures"));
}

TEST(HfConfig, Gpt2HasTheNamesOfOtherFamiliesToo) {
  const std::string other = R"({"model_type":"gpt2","vocab_size":64,"hidden_size":48,"num_hidden_layers":2,)"
                            R"("num_attention_heads":4,"max_position_embeddings":32})";
  EXPECT_EQ(parse(other).model.d_model, 48);
  EXPECT_EQ(parse(other).model.max_seq_len, 32);
  EXPECT_EQ(refusal(gpt2(48, 2, 4, R"("hidden_size":48)")), "accepted");
  EXPECT_THAT(refusal(gpt2(48, 2, 4, R"("hidden_size":52)")), HasSubstr("n_embd: must agree with hidden_size"));
}

TEST(HfConfig, PublishedKeysWithoutEffectAreTakenWithTheirPublishedValueOnly) {
  struct Case {
    std::string model;
    std::string published;
    std::string changed;
  };
  const std::string gemma = with(gemma2(small), R"("head_dim":12,"sliding_window":4096)");
  const std::vector<Case> cases = {
      {phi3(small), R"("full_attn_mod":1)", R"("full_attn_mod":2)"},
      {phi3(small), R"("interpolate_factor":1,"lm_head_bias":false)", R"("lm_head_bias":true)"},
      {gemma, R"("sliding_window_size":4096)", R"("sliding_window_size":2048)"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(refusal(with(c.model, c.published)), "accepted") << c.published;
    EXPECT_NE(refusal(with(c.model, c.changed)), "accepted") << c.changed;
  }
}

TEST(HfConfig, HeadsThatTheKernelsCannotDoAreRefused) {
  EXPECT_EQ(refusal(llama(64, 2048, 80, 2, 2, 2)), "accepted");
  EXPECT_THAT(refusal(llama(64, 4096, 80, 2, 2, 2)), HasSubstr("heads of 2048 elements are too wide"));
  EXPECT_THAT(refusal(with(small, R"("head_dim":7)")), HasSubstr("head_dim: rope rotates pairs of elements"));
  EXPECT_EQ(refusal(gpt2(12, 2, 4)), "accepted");  // three elements, and no rope
}

// The padding_idx of Transformers 5.24: the configuration classes of Gemma 2 and Phi-3 have defaults (0 and 32000),
// GPT-2's model has none, and -1 is the last row. With an id beyond the vocabulary Transformers makes no model.
TEST(HfConfig, TheRowOfPaddingIsTransformers) {
  const auto row = [](const std::string& text) { return parse(text).model.pad_token_id; };
  EXPECT_EQ(row(small), -1);
  EXPECT_EQ(row(with(small, R"("pad_token_id":5)")), 5);
  EXPECT_EQ(row(with(small, R"("pad_token_id":null)")), -1);
  EXPECT_EQ(row(with(small, R"("pad_token_id":-1)")), parse(small).model.vocab_size - 1);
  EXPECT_EQ(row(with(small, R"("pad_token_id":64000)")), -1);
  EXPECT_EQ(row(gemma2(small)), 0);
  EXPECT_EQ(row(with(gemma2(small), R"("pad_token_id":null)")), -1);
  EXPECT_EQ(row(phi3(small)), -1) << "a small vocabulary";
  EXPECT_EQ(row(gpt2(48, 2, 4, R"("pad_token_id":5)")), -1);
}

TEST(HfConfig, GenerationConfigDecidesWhatEndsAText) {
  const TokenIds of_config = parse(with(small, R"("bos_token_id":1,"eos_token_id":2)")).ids;
  const auto ids = [&](const std::string& text) {
    return parse_generation_ids(text, "generation_config.json", of_config);
  };
  EXPECT_THAT(ids(R"({"eos_token_id":[3,4],"pad_token_id":5,"do_sample":true,"top_p":0.8})").eos, ElementsAre(3, 4));
  EXPECT_EQ(ids(R"({"eos_token_id":[3,4],"pad_token_id":5})").pad, 5);
  EXPECT_EQ(ids(R"({"eos_token_id":7})").bos, 1);
  EXPECT_THAT(ids("{}").eos, ElementsAre(2));
  EXPECT_THAT(test::verdict(ExitCode::bad_content, [&] { ids(R"({"eos_token_id":"x"})"); }), HasSubstr("eos_token_id"));
}

TEST(HfConfig, TokenIds) {
  const TokenIds ids = parse(with(small, R"("bos_token_id":1,"eos_token_id":[2,3],"pad_token_id":null)")).ids;
  EXPECT_EQ(ids.bos, 1);
  EXPECT_EQ(ids.pad, -1);
  EXPECT_THAT(ids.eos, ElementsAre(2, 3));
  EXPECT_THAT(parse(with(small, R"("eos_token_id":5)")).ids.eos, ElementsAre(5));
}

TEST(HfConfig, WhatIsWrittenIsReadAgain) {
  const std::string longrope = R"("original_max_position_embeddings":1024,"rope_scaling":{"type":"longrope",)"
                               R"("short_factor":[1,1,1,1,1,2.5],"long_factor":[1,1,1,1,1,2.5]})";
  for (const std::string& text :
       {small,
        with(small, R"("attention_bias":true,"mlp_bias":true,"hidden_act":"gelu","head_dim":6)"),
        with(small, R"("rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,)"
                    R"("original_max_position_embeddings":512})"),
        with(small, R"("rope_scaling":{"rope_type":"dynamic","factor":2})"),
        mistral(small),
        with(mistral(small), R"("sliding_window":null)"),
        with(mistral(small), R"("layer_types":["full_attention","sliding_attention"])"),
        qwen2(small),
        with(qwen2(small), R"("use_sliding_window":true,"sliding_window":16,"max_window_layers":1)"),
        with(qwen2(small), R"("use_sliding_window":true,"sliding_window":16,"max_window_layers":0)"),
        with(qwen2(small), R"("rope_scaling":{"type":"yarn","factor":4.5,"original_max_position_embeddings":3276,)"
                           R"("mscale":0.7,"mscale_all_dim":0.9,"truncate":false,"beta_fast":30})"),
        qwen3(small),
        gemma2(small),
        with(gemma2(small), R"("query_pre_attn_scalar":144,"attn_logit_softcapping":null,"sliding_window":9)"),
        phi3(small),
        with(phi3(small), R"("sliding_window":2047,"partial_rotary_factor":0.5)"),
        with(phi3(small), longrope),
        gpt2(48, 2, 4),
        with(as_family(small, "starcoder2", ""), R"("use_bias":false,"sliding_window":9,"hidden_act":"gelu")"),
        with(as_family(small, "granite", ""),
             R"("attention_multiplier":0.35355339059327373,"residual_multiplier":0.22,)"
             R"("logits_scaling":10,"embedding_multiplier":12)"),
        with(as_family(small, "smollm3", ""), R"("no_rope_layers":[0,1],"use_sliding_window":true,"sliding_window":8)"),
        as_family(small, "olmo2", ""),
        with(as_family(small, "gpt_neox", ""), R"("use_parallel_residual":false,"rotary_pct":1)"),
        with(as_family(small, "gpt_neox", ""), R"("rotary_pct":0.5,"rotary_emb_base":500,"attention_bias":false)"),
        as_family(small, "falcon", ""),
        with(as_family(small, "falcon", ""), R"("parallel_attn":false,"bias":true)"),
        with(as_family(small, "falcon", ""), R"("new_decoder_architecture":true,"num_kv_heads":2)"),
        with(as_family(small, "falcon", ""), R"("multi_query":false,"ffn_hidden_size":80)"),
        with(as_family(small, "gemma3_text", ""), R"("sliding_window":8,"sliding_window_pattern":2)"),
        with(as_family(small, "gemma3_text", ""),
             R"("layer_types":["full_attention","full_attention"],"rope_scaling":{"rope_type":"linear","factor":8})"),
        gpt2(48, 2, 4, R"("n_inner":100,"activation_function":"relu","tie_word_embeddings":false)")}) {
    const ModelConfig model = parse(text).model;
    EXPECT_EQ(hf_config_obstacle(model), "") << text;
  }
  ModelConfig model = parse(small).model;
  model.norm = ModelConfig::Norm::layernorm;
  EXPECT_THAT(hf_config_obstacle(model), HasSubstr("no llama model with model.norm = layernorm"));
  model = parse(gpt2(48, 2, 4)).model;
  model.pre_norm = false;
  EXPECT_THAT(hf_config_obstacle(model), HasSubstr("model.pre_norm = false"));
  model = parse(small).model;
  model.sliding_window = 5;
  EXPECT_THAT(hf_config_obstacle(model), HasSubstr("model.sliding_window = 5"));
}

TEST(HfConfig, TheTypeOfTheWeightsIsAllThatChangesInATextTakenOver) {
  const std::string text = "{\n  \"b\": 1,\n  \"torch_dtype\": \"bfloat16\", \"a\": 2}";
  EXPECT_EQ(with_dtype(text, "c", "bfloat16"), text);
  EXPECT_EQ(with_dtype(text, "c", "float32"), "{\n  \"a\": 2,\n  \"b\": 1,\n  \"torch_dtype\": \"float32\"\n}\n");
  EXPECT_EQ(with_dtype("{}", "c", "float32"), "{}");
}

}  // namespace
}  // namespace llmtrain
