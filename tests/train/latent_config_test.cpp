// Decks with experts, latent attention, and biases of routers.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.hpp"
#include "hf/config/config_json.hpp"
#include "train/config/load_config.hpp"

namespace llmtrain {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Config load(std::string_view family, std::vector<std::string> keys = {}) {
  keys.push_back("model.family=" + std::string(family));
  return load_config(
      "[run]\nmax_steps = 1\n[model]\nd_model = 32\nn_layers = 2\nn_heads = 2\n[data]\ntrain = builtin:stories\n"
      "[batch]\nsequence_length = 16\n",
      "a.ini", keys);
}

std::string errors_of(std::string_view family, const std::vector<std::string>& keys) {
  try {
    load(family, keys);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::deck);
    return error.what();
  }
  return "no error";
}

TEST(LatentConfig, DefaultsCanBeExported) {
  for (const char* family : {"deepseek_v2", "deepseek_v3"}) {
    for (const std::vector<std::string>& keys :
         {std::vector<std::string>{}, {"model.n_experts=4", "model.experts_per_token=2", "model.d_ff=40"}}) {
      ModelConfig model = load(family, keys).model;
      EXPECT_EQ(model.head_dim, 192);
      EXPECT_EQ(model.rotary_dim(), 64);
      EXPECT_EQ(model.n_kv_heads, 2);
      EXPECT_EQ(model.experts.dense_layers, std::vector<int64_t>{0}) << "one of two layers at most";
      model.vocab_size = 64;
      EXPECT_EQ(hf_config_obstacle(model), "");
    }
  }
  EXPECT_EQ(load("deepseek_v3").model.experts.groups, 8);
  EXPECT_EQ(load("deepseek_v3", {"model.n_experts=12"}).model.experts.groups, 1);
  EXPECT_EQ(load("deepseek_v2", {"model.d_ff_expert=16"}).model.d_ff, 128) << "layer 0 has no experts";
  EXPECT_EQ(load("qwen3_moe", {"model.d_ff_expert=16"}).model.d_ff, 16) << "every layer has";
}

TEST(ExpertsDeckKeys, PartsWithoutANameInTheFamilyAreRefused) {
  EXPECT_EQ(errors_of("olmoe", {"model.d_ff_shared=16"}), "no error");
  EXPECT_EQ(errors_of("llama", {"model.attention_sinks=true"}), "no error");
  for (const char* family : {"mixtral", "gpt_oss"}) {
    EXPECT_THAT(errors_of(family, {"model.d_ff_shared=16"}),
                HasSubstr("model.d_ff_shared: this family has no shared expert: remove the key"));
  }
  EXPECT_THAT(errors_of("gpt2", {"model.attention_sinks=true"}),
              HasSubstr("model.attention_sinks: this family has no sinks of attention: remove the key"));
  EXPECT_THAT(errors_of("mixtral", {"model.mlp_bias=true"}), HasSubstr("have biases: set mlp_bias = false"));
}

// A problem of several keys stands at the one that is given.
TEST(ExpertsDeckKeys, NumbersThatDoNotFitNameTheGivenKey) {
  EXPECT_THAT(errors_of("mixtral", {"model.n_experts=1"}), HasSubstr("model.n_experts: a token uses 2 experts"));
  EXPECT_THAT(errors_of("mixtral", {"model.expert_every=5"}), HasSubstr("model.expert_every: none of the 2 layers"));
}

TEST(ExpertsDeckKeys, RoutersThatScoreBySigmoidHaveNoLossUnlessTheDeckSetsIt) {
  EXPECT_EQ(load("mixtral").objective.router_aux, 0.001);
  EXPECT_EQ(load("mixtral", {"model.router_score=sigmoid"}).objective.router_aux, 0);
  EXPECT_THAT(errors_of("mixtral", {"model.router_score=sigmoid", "objective.router_aux=0.01"}),
              HasSubstr("need router_score = softmax"));
}

TEST(ExpertsConfig, NumbersOfExpertsHaveLimits) {
  EXPECT_EQ(errors_of("mixtral", {"model.n_experts=4096", "model.n_layers=32"}), "no error");
  EXPECT_THAT(errors_of("mixtral", {"model.n_experts=4096", "model.n_layers=33"}),
              HasSubstr("model.n_experts: 4096 experts in 33 layers are more than 131072 in all"));
  EXPECT_THAT(errors_of("mixtral", {"model.n_experts=4097"}), HasSubstr("must be 0 .. 4096"));
  for (const char* kind : {"lora", "freeze"}) {  // neither builds such a model
    const std::string errors =
        errors_of("deepseek_v3", {"model.n_experts=4096", "model.n_layers=4096", "objective.router_bias_rate=1",
                                  fmt::format("run.finetuning={}", kind)});
    EXPECT_THAT(errors, HasSubstr("4096 experts in 4096 layers"));
  }
}

TEST(ExpertsConfig, AdaptersThatPeftDoesNotLoadAreNoted) {
  const auto noted = [](const char* family, std::vector<std::string> keys) {
    for (const char* key : {"run.finetuning=lora", "model.n_experts=4", "model.experts_per_token=2"})
      keys.emplace_back(key);
    const std::vector<std::string> notes = load(family, keys).notes;
    return std::ranges::any_of(
        notes, [](const std::string& note) { return note.find("PEFT 0.21 does not load all") < note.size(); });
  };
  for (const char* family : {"mixtral", "olmoe", "qwen3_moe"}) {
    EXPECT_FALSE(noted(family, {})) << family;
    EXPECT_TRUE(noted(family, {"lora.dora=true"})) << family;
    EXPECT_FALSE(noted(family, {"lora.dora=true", "lora.target_modules=o_proj"})) << family;
  }
  for (const char* family : {"qwen2_moe", "gpt_oss", "deepseek_v2", "deepseek_v3"}) {
    EXPECT_TRUE(noted(family, {})) << family;
    EXPECT_FALSE(noted(family, {"lora.target_modules=o_proj"})) << family;
  }
  EXPECT_TRUE(noted("qwen3_moe", {"model.dense_layers=0"}));
}

TEST(ExpertsConfig, ARateOfFrozenBiasesHasNoEffect) {
  const auto notes = [](std::vector<std::string> keys) {
    for (const char* key : {"model.n_experts=4", "model.experts_per_token=2", "objective.router_bias_rate=0.001"}) {
      keys.emplace_back(key);
    }
    return load("deepseek_v3", keys).notes;
  };
  const std::string lora = "run.finetuning=lora", freeze = "run.finetuning=freeze", one = "freeze.trainable_layers=1";
  const auto unused = [](const char* kind) {
    return Contains(HasSubstr(fmt::format("objective.router_bias_rate: no effect with run.finetuning = {}", kind)));
  };
  EXPECT_THAT(notes({}), IsEmpty());
  EXPECT_THAT(notes({lora}), unused("lora"));
  EXPECT_THAT(notes({lora, "lora.modules_to_save=gate"}), Not(unused("lora")));
  EXPECT_THAT(notes({freeze, one}), IsEmpty());
  EXPECT_THAT(notes({freeze, one, "freeze.trainable_modules=self_attn"}), unused("freeze"));
}

TEST(LatentConfig, WhatDoesNotFitIsRefused) {
  EXPECT_EQ(errors_of("deepseek_v3", {"objective.router_bias_rate=0.001"}), "no error");
  EXPECT_THAT(errors_of("deepseek_v2", {"objective.router_bias_rate=0.001"}),
              HasSubstr("objective.router_bias_rate: the model's routers have no biases"));
  EXPECT_THAT(errors_of("deepseek_v3", {"objective.router_aux=0.001"}), HasSubstr("need router_score = softmax"));
  EXPECT_THAT(errors_of("llama", {"model.kv_lora_rank=8"}), HasSubstr("llama has no latent attention"));
  EXPECT_THAT(errors_of("deepseek_v2", {"model.kv_lora_rank=0"}), HasSubstr("deepseek_v2 has latent attention"));
  EXPECT_THAT(errors_of("deepseek_v2", {"model.head_dim=64"}), HasSubstr("= 192: remove the key"));
  EXPECT_THAT(errors_of("deepseek_v2", {"model.n_kv_heads=1"}), HasSubstr("it is n_heads = 2: remove the key"));
  EXPECT_THAT(errors_of("deepseek_v2", {"model.v_head_dim=193"}), HasSubstr("wider than queries of 192"));
  EXPECT_THAT(errors_of("deepseek_v2", {"model.qk_nope_head_dim=0"}), HasSubstr("must be above 0"));
  EXPECT_THAT(errors_of("deepseek_v2", {"model.qk_rope_head_dim=3"}), HasSubstr("cannot be paired"));
  EXPECT_THAT(errors_of("deepseek_v2", {"model.qkv_bias=true"}), HasSubstr("latent attention has no biases"));
}

}  // namespace
}  // namespace llmtrain
