// Freeze tuning compared with PyTorch, where the same parameters do not require gradients:
// tests/reference/make_freeze_goldens.py.

#include "models/freeze.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "core/profile.hpp"
#include "harness/gradient_norm.hpp"
#include "harness/harness.hpp"
#include "kernels/step_decision.hpp"
#include "models/test_model.hpp"
#include "optim/optimizer.hpp"

namespace llmtrain::test {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

const nlohmann::json& goldens() {
  static const nlohmann::json json = [] {
    std::ifstream file("tests/reference/freeze/goldens.json");
    return nlohmann::json::parse(file);
  }();
  return json;
}

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (auto entry = goldens().begin(); entry != goldens().end(); ++entry) {
    if (entry->is_object()) names.push_back(entry.key());
  }
  return names;
}

FreezeConfig config_of(const nlohmann::json& j) {
  FreezeConfig config;
  config.trainable_layers = j["trainable_layers"];
  config.trainable_modules = j["trainable_modules"].get<std::vector<std::string>>();
  config.extra_modules = j["extra_modules"].get<std::vector<std::string>>();
  config.llama_pro = j["llama_pro"];
  return config;
}

/// FLOPs of all spans whose names begin with `name`.
double flops(const std::vector<Span>& spans, std::string_view name) {
  double sum = 0;
  for (const Span& s : spans) sum += std::string_view(s.name).starts_with(name) ? s.work.flops : 0;
  return sum;
}

class FreezeGolden : public ::testing::TestWithParam<std::string> {
 protected:
  FreezeGolden() : json(goldens().at(GetParam())), golden(json["model"]), rows(rows_of(golden)) {
    shape = shape_of(golden);
    names = json["trained"].get<std::vector<std::string>>();
    trained = {names.begin(), names.end()};
    shape.trained = [this](const std::string& name) { return trained.contains(name); };
    tokens = static_cast<double>(TestModel::trained({rows}));
  }

  std::map<std::string, std::vector<float>> parameters() const {
    std::map<std::string, std::vector<float>> out;
    for (const std::string& name : golden.names("params")) out[name] = golden.floats("params/" + name).values;
    return out;
  }
  TestModel model(DType compute = DType::f32, Recompute recompute = Recompute::none) const {
    return {shape, compute, static_cast<int64_t>(rows.ids.size()), recompute};
  }

  const nlohmann::json& json;
  Golden golden;
  Rows rows;
  DecoderShape shape;
  std::vector<std::string> names;
  std::set<std::string> trained;
  double tokens = 0;
};

TEST_P(FreezeGolden, TheRuleTrainsTheSameParameters) {
  const FrozenPart part = choose_trained(config_of(json), shape.config);
  EXPECT_TRUE(part.errors.empty());
  EXPECT_THAT(part.trained, ElementsAreArray(names));
}

TEST_P(FreezeGolden, GradientsAndTenSteps) {
  TestModel m = model();
  m.set(parameters());
  const auto optimizer = make_optimizer({.weight_decay = golden.number("adamw_weight_decay")});
  const auto losses = json["losses"].get<std::vector<double>>(), norms = json["grad_norms"].get<std::vector<double>>();
  for (int t = 1; t <= 10; ++t) {
    const double loss = m.differentiate({rows}) / tokens, norm = gradient_norm(m.params()) / tokens;
    const auto step = static_cast<size_t>(t) - 1;
    EXPECT_NEAR(loss, losses[step], (t == 1 ? 1e-5 : 1e-4) * losses[step]) << "step " << t;
    EXPECT_NEAR(norm, norms[step], 1e-4 * norms[step]) << "step " << t;
    if (t == 1) {
      std::vector<std::string> found;
      for (auto& [name, gradient] : m.gradients()) {
        found.push_back(name);
        for (float& g : gradient) g = static_cast<float>(g / tokens);
        EXPECT_LT(golden.gradient_error(name, gradient), 1e-5) << name;
      }
      EXPECT_EQ(found, names);
    }
    optimizer->update(m.params(), {t, golden.number("adamw_learning_rate"), clip_factor(norm, 1.0) / tokens}, stream());
  }
  EXPECT_NEAR(m.score(rows) / tokens, losses[10], 1e-4 * losses[10]);
  EXPECT_GT(std::abs(losses[10] - losses[0]), 1e-2) << "the steps must matter";
  const auto before = parameters(), after = m.parameters();
  for (const auto& [name, values] : after) EXPECT_EQ(values != before.at(name), trained.contains(name)) << name;
}

// In bf16 frozen weights are what rounded masters are: the loss and the gradients have the bits of a run that trains
// all.
TEST_P(FreezeGolden, BitsAreThoseOfTheWholeModel) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    TestModel part = model(compute, Recompute::block);
    part.set(parameters());
    DecoderShape all = shape;
    all.trained = nullptr;
    TestModel whole(all, compute, static_cast<int64_t>(rows.ids.size()));
    whole.set(parameters());
    EXPECT_EQ(part.differentiate({rows, rows}), whole.differentiate({rows, rows}));
    const auto expected = whole.gradients();
    for (const auto& [name, gradient] : part.gradients()) EXPECT_EQ(gradient, expected.at(name)) << name;
  }
}

TEST_P(FreezeGolden, NoProductIsFormedForFrozenMatrices) {
  TestModel m = model();
  m.set(parameters());
  Recorder recorder;
  recorder.start();
  m.differentiate({rows});
  recorder.stop();
  double matrices = 0;
  for (int unit = 0; unit < m.params().units().size(); ++unit) {
    for (const ParamSpec& p : m.params().units()[unit].spec.params) {
      const bool table = p.name.find("wte") != std::string::npos || p.name.find("wpe") != std::string::npos ||
                         p.name.find("embed_tokens") != std::string::npos;
      const bool product = p.decay && (!table || (shape.config.tie_embeddings && p.name.find("wpe") == p.name.npos));
      if (m.params().units()[unit].trained() && product) matrices += static_cast<double>(p.numel());
    }
  }
  const auto n = static_cast<double>(rows.ids.size());
  EXPECT_EQ(flops(recorder.spans, "linear_backward_weight"), 2 * matrices * n);
  EXPECT_EQ(flops(recorder.spans, "linear_"), Decoder(shape).flops_per_token(0) * n);
  DecoderShape all = shape;
  all.trained = nullptr;
  EXPECT_LT(flops(recorder.spans, "linear_"), Decoder(all).flops_per_token(0) * n);
}

INSTANTIATE_TEST_SUITE_P(Cases, FreezeGolden, ::testing::ValuesIn(case_names()),
                         [](const auto& test) { return test.param; });

ModelConfig eight_layers() {
  ModelConfig c;
  c.family = ModelConfig::Family::llama;
  c.n_layers = 8;
  c.positions = ModelConfig::Positions::rope;
  c.norm = ModelConfig::Norm::rmsnorm;
  c.activation = ModelConfig::Activation::swiglu;
  c.bias = c.qkv_bias = c.attention_output_bias = c.mlp_bias = c.tie_embeddings = false;
  return c;
}

TEST(Freeze, LlamaProTrainsTheLastLayerOfEachGroup) {
  FreezeConfig config{.trainable_layers = 2, .trainable_modules = {"down_proj", "self_attn"}, .llama_pro = true};
  const FrozenPart part = choose_trained(config, eight_layers());
  std::set<std::string> wanted;
  for (const char* layer : {"3", "7"}) {
    for (const char* module :
         {"mlp.down_proj", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"}) {
      wanted.insert("model.layers." + std::string(layer) + "." + module + ".weight");
    }
  }
  EXPECT_THAT(part.trained, ElementsAreArray(wanted));
}

TEST(Freeze, ATiedHeadIsTheEmbedding) {
  ModelConfig tied = eight_layers();
  FreezeConfig config{.trainable_layers = 0, .extra_modules = {"lm_head"}};
  EXPECT_THAT(choose_trained(config, tied).trained, ElementsAreArray({"lm_head.weight"}));
  tied.tie_embeddings = true;
  EXPECT_THAT(choose_trained(config, tied).trained, ElementsAreArray({"model.embed_tokens.weight"}));
}

TEST(Freeze, WrongKeysAreNamed) {
  const auto error_of = [](const FreezeConfig& config) {
    const FrozenPart part = choose_trained(config, eight_layers());
    return part.errors.empty() ? std::string() : part.errors.front().first + ": " + part.errors.front().second;
  };
  EXPECT_EQ(error_of({}), "");
  EXPECT_THAT(error_of({.trainable_layers = 9}), HasSubstr("trainable_layers: 9: the model has 8 layers"));
  EXPECT_THAT(error_of({.trainable_layers = -9}), HasSubstr("trainable_layers: -9"));
  EXPECT_THAT(error_of({.trainable_layers = 0}), HasSubstr("nothing would be trained"));
  EXPECT_THAT(error_of({.trainable_layers = 8, .extra_modules = {"embed_tokens", "norm", "lm_head"}}),
              HasSubstr("trainable_layers: every parameter would be trained"));
  EXPECT_THAT(error_of({.trainable_layers = 3, .llama_pro = true}), HasSubstr("must divide the model's 8 layers"));
  EXPECT_THAT(error_of({.trainable_layers = -2, .llama_pro = true}), HasSubstr("must divide"));
  EXPECT_THAT(error_of({.trainable_modules = {"mpl"}}), HasSubstr("has no mpl (did you mean mlp?)"));
  EXPECT_THAT(error_of({.trainable_modules = {"embed_tokens"}}), HasSubstr("trainable_modules: the model has no"));
  EXPECT_THAT(error_of({.trainable_modules = {""}}), HasSubstr("trainable_modules: the model has no"));
  EXPECT_THAT(error_of({.extra_modules = {"mlp"}}), HasSubstr("extra_modules: the model has no mlp"));
  EXPECT_THAT(error_of({.trainable_modules = {"q_proj"}}), HasSubstr("one matrix here"));
  EXPECT_EQ(error_of({.trainable_modules = {"q_proj", "k_proj", "v_proj"}}), "");
}

}  // namespace
}  // namespace llmtrain::test
