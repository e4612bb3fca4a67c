// Rates and initial values of a model that is wider than the one for which they were chosen (Yang et al. 2022, table
// 8).

#include "models/mup.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "core/error.hpp"
#include "harness/temporary_folder.hpp"
#include "hf/config/config_json.hpp"
#include "models/model.hpp"
#include "models/models.hpp"
#include "train/config/load_config.hpp"

namespace llmtrain {
namespace {

using testing::HasSubstr;

Config config_of(int64_t width, const std::string& family = "granite", const std::string& more = "") {
  return load_config(
      fmt::format("[run]\nmax_steps = 1\n[model]\nfamily = {}\nd_model = {}\nn_layers = 1\nn_heads = 2\n"
                  "mup_base_width = 64\nvocab_size = 8\n[data]\ntrain = x.txt\n[batch]\nsequence_length = 16\n{}",
                  family, width, more),
      "d.ini");
}

std::string refusal(const std::string& family, const std::string& more) {
  try {
    config_of(128, family, more);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

std::map<std::string, std::pair<double, double>> rates_and_widths(const Config& config) {
  std::map<std::string, std::pair<double, double>> found;
  const auto model = make_model(config.model, 8, {});
  for (const UnitSpec& unit : model->units()) {
    for (const ParamSpec& param : unit.params) found[param.slices.front().name] = {param.lr_scale, param.init.width};
  }
  return found;
}

TEST(Mup, ScalesHiddenMatricesScoresAndLogits) {
  const Config narrow = config_of(64), wide = config_of(256);
  EXPECT_EQ(wide.model.logits_scaling, 4 * narrow.model.logits_scaling);
  EXPECT_EQ(wide.model.query_pre_attn_scalar, 128.0 * 128.0) << "heads of 128 elements";
  const auto base = rates_and_widths(narrow), found = rates_and_widths(wide);
  const std::string layer = "model.layers.0.";
  for (const std::string& name : {layer + "self_attn.q_proj.weight", layer + "mlp.down_proj.weight"}) {
    EXPECT_EQ(base.at(name), std::pair(1.0, 0.02)) << name;
    EXPECT_EQ(found.at(name), std::pair(0.25, 0.01)) << name;
  }
  for (const std::string& name : {std::string("model.embed_tokens.weight"), layer + "input_layernorm.weight"}) {
    EXPECT_EQ(found.at(name), base.at(name)) << name;
  }
}

TEST(Mup, IsExportedAsTheFactorsThatItSets) {
  for (const int64_t width : {256, 200}) {  // 200: of heads of 100 channels, and 3.125 base widths
    ModelConfig model = config_of(width, "granite", "[checkpoint]\nexport = last\n").model;
    model.vocab_size = 8;
    const ModelConfig read = parse_hf_config(write_hf_config(model, {}, "float32"), "config.json").model;
    EXPECT_EQ(read.logits_scaling, 8.0 * static_cast<double>(width) / 64);
    EXPECT_EQ(read.query_pre_attn_scalar, static_cast<double>(width * width) / 4);
    EXPECT_EQ(hf_config_obstacle(model), "");
    model.norm = ModelConfig::Norm::layernorm;
    EXPECT_NE(hf_config_obstacle(model), "") << "control";
  }
}

TEST(Mup, OfAFoldersModelScalesLearningRatesAlone) {
  ModelConfig published = config_of(256).model;
  published.vocab_size = 8;
  const test::TemporaryFolder folder;
  std::ofstream(folder / "config.json") << write_hf_config(published, {}, "float32");
  const auto tuned = [&](const std::string& base) {
    return load_config("[run]\nmax_steps = 1\n[model]\npath = " + folder.text() + "\n" + base +
                           "[data]\ntrain = x.txt\n[batch]\nsequence_length = 16\n",
                       "d.ini");
  };
  const std::string matrix = "model.layers.0.mlp.down_proj.weight";
  const Config scaled = tuned("mup_base_width = 64\n"), plain = tuned("");
  EXPECT_EQ(scaled.model.logits_scaling, 32) << "the folder's";
  EXPECT_EQ(scaled.model.query_pre_attn_scalar, 128.0 * 128.0);
  EXPECT_EQ(rates_and_widths(scaled).at(matrix).first, 0.25);
  EXPECT_EQ(rates_and_widths(plain).at(matrix).first, 1) << "control";
}

TEST(Mup, RefusesWhatItsFactorsDoNotFit) {
  EXPECT_THAT(refusal("llama", ""), HasSubstr("d.ini:8: model.mup_base_width: only granite's config.json"));
  EXPECT_THAT(refusal("granite", "[optimizer]\nname = muon\n"), HasSubstr("its factors are those of adamw"));
  EXPECT_THAT(refusal("granite", "[run]\nfinetuning = lora\n"), HasSubstr("adapters have one rate at all widths"));
  EXPECT_EQ(refusal("granite", "[optimizer]\nname = lion\n"), "accepted") << "control";
}

}  // namespace
}  // namespace llmtrain
