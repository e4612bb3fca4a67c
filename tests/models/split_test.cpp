// Decoders whose matrices are split into blocks (parallel.tensor_blocks), all on one rank: compared with PyTorch, and
// with themselves.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "harness/errors.hpp"
#include "harness/harness.hpp"
#include "models/split_models.hpp"

namespace llmtrain::test {
namespace {

/// Numbers of blocks into which a model can be split.
std::vector<int64_t> splits_of(const ModelConfig& c) {
  std::vector<int64_t> splits;
  for (const int64_t blocks : {2, 4}) {
    const bool heads = c.n_heads % blocks == 0 && c.n_kv_heads % blocks == 0;
    if (heads && c.d_ff % blocks == 0 && c.experts.count % blocks == 0 && c.experts.d_ff_shared % blocks == 0) {
      splits.push_back(blocks);
    }
  }
  return splits;
}

class SplitGolden : public ::testing::TestWithParam<std::string> {
 protected:
  SplitGolden() : golden(GetParam()), rows(rows_of(golden)), count(static_cast<int64_t>(rows.ids.size())) {
    for (const std::string& name : golden.names("params")) values[name] = golden.floats("params/" + name).values;
  }

  DecoderShape shape(int64_t blocks) const {
    DecoderShape s = shape_of(golden);
    s.tensor = {blocks, 0, blocks};
    return s;
  }

  Golden golden;
  Rows rows;
  int64_t count;
  Parameters values;
};

TEST_P(SplitGolden, Fp32LogitsLossAndGradients) {
  const std::vector<int64_t> splits = splits_of(shape_of(golden).config);
  if (splits.empty()) GTEST_SKIP() << "its heads cannot be split";
  TestModel whole(shape(1), DType::f32, count);
  whole.set(values);
  add_router_losses(whole, golden);
  whole.differentiate({rows});
  const Parameters unsplit = whole.gradients();
  const auto expected = golden.floats("logits").values;
  const auto tokens = static_cast<double>(TestModel::trained({rows}));
  for (const int64_t blocks : splits) {
    TestModel m(shape(blocks), DType::f32, count);
    m.set(values);
    add_router_losses(m, golden);
    EXPECT_EQ(m.parameters(), values) << "every element has a place";
    const std::vector<float> logits = m.logits(rows);
    for (size_t i = 0; i < logits.size(); ++i) ASSERT_NEAR(logits[i], expected[i], 5e-5) << i;
    const double loss = m.differentiate({rows}) / tokens;
    EXPECT_NEAR(loss, golden.scalar("loss"), 1e-5 * golden.scalar("loss"));
    const double of_routers = m.has_router() ? m.router().loss().value() / tokens : 0;
    EXPECT_NEAR(m.score(rows) / tokens + of_routers, golden.scalar("loss"), 1e-5 * golden.scalar("loss"));
    Parameters gradients = m.gradients();
    EXPECT_NE(gradients, unsplit) << "control: it is another order of summation";
    for (auto& [name, gradient] : gradients) {
      if (name.ends_with("e_score_correction_bias")) continue;  // which has none
      for (float& g : gradient) g = static_cast<float>(g / tokens);
      EXPECT_LT(golden.gradient_error(name, gradient), 1e-5) << name << ' ' << blocks;
    }
  }
}

TEST_P(SplitGolden, RecomputationChangesNoBit) {
  if (splits_of(shape_of(golden).config).empty()) GTEST_SKIP() << "its heads cannot be split";
  DecoderShape s = shape(2);
  s.config.dropout = s.config.attention_dropout = 0.2;
  const auto differentiated = [&](Recompute recompute, int64_t step) {
    TestModel m(s, DType::bf16, count, recompute);
    m.set(values);
    m.context().training = true;
    m.context().step = step;
    const double loss = m.differentiate({rows});
    return std::pair(loss, m.gradients());
  };
  const auto expected = differentiated(Recompute::none, 0);
  for (const Recompute level : {Recompute::activation, Recompute::attention, Recompute::block}) {
    EXPECT_TRUE(differentiated(level, 0) == expected) << name_of(level);
  }
  EXPECT_NE(differentiated(Recompute::block, 1), expected) << "control: other dropout";
}

INSTANTIATE_TEST_SUITE_P(Cases, SplitGolden, ::testing::ValuesIn(Golden::cases()),
                         [](const auto& test) { return test.param; });

class SplitLoraGolden : public ::testing::TestWithParam<std::string>, protected AdaptedModel {
 protected:
  SplitLoraGolden() : AdaptedModel(GetParam()) {}
};

TEST_P(SplitLoraGolden, LossAndGradients) {
  const std::vector<int64_t> splits = splits_of(shape.config);
  if (splits.empty()) GTEST_SKIP() << "its heads cannot be split";
  for (const int64_t blocks : splits) {
    shape.tensor = {blocks, 0, blocks};
    TestModel m = model();
    m.set(parameters());
    const double loss = m.differentiate({rows}) / tokens;
    EXPECT_NEAR(loss, lora.doubles("losses").values[0], 1e-5 * loss);
    for (auto& [name, gradient] : m.gradients()) {
      for (float& g : gradient) g = static_cast<float>(g / tokens);
      if (!trained.contains(name)) continue;
      EXPECT_LT(lora.gradient_error(name, gradient), 1e-5) << name << " " << blocks;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, SplitLoraGolden, ::testing::ValuesIn(lora_cases()),
                         [](const auto& test) { return test.param; });

struct Result {
  double loss;
  Parameters gradients;
};

Result result_of(DecoderShape shape, int64_t blocks, DType compute, const Parameters& values) {
  const Rows rows = random_rows(shape.tokens);
  shape.tensor = {blocks, 0, blocks};
  TestModel m(shape, compute, static_cast<int64_t>(rows.ids.size()));
  m.set(values);
  const double loss = m.differentiate({rows});
  return {loss, m.gradients()};
}

/// Compares blocks with the whole: in fp32 the same numbers, in bf16 as near to fp32 as the whole is.
void expect_numbers_of_the_whole(const DecoderShape& shape) {
  const Parameters values = random_values(shape);
  const Result exact = result_of(shape, 1, DType::f32, values), rounded = result_of(shape, 1, DType::bf16, values);
  const double error = distance(rounded.gradients, exact.gradients);
  EXPECT_GT(error, 1e-3) << "control: rounding is seen";
  for (const int64_t blocks : {2, 4}) {
    const Result split = result_of(shape, blocks, DType::f32, values);
    EXPECT_NEAR(split.loss, exact.loss, 1e-6 * exact.loss);
    EXPECT_LT(distance(split.gradients, exact.gradients), 2e-6) << blocks;
    EXPECT_NE(split.gradients, exact.gradients) << "control: it is another order of summation";
    EXPECT_LT(distance(result_of(shape, blocks, DType::bf16, values).gradients, exact.gradients), 1.3 * error);
  }
}

TEST(SplitFamilies, HaveTheNumbersOfTheWhole) {
  for (const ModelConfig::Family family : all_families) {
    SCOPED_TRACE(name_of(family));
    expect_numbers_of_the_whole(splittable_shape(family));
  }
}

TEST(SplitFamilies, BlocksThatRunInPhasesHaveTheNumbersOfTheWhole) {
  for (DecoderShape shape : shapes_in_phases()) {
    SCOPED_TRACE(testing::Message() << name_of(shape.config.family) << ' ' << shape.config.latent.query_rank);
    expect_numbers_of_the_whole(shape);
    adapt_all(shape, {.rank = 3, .dora = true});
    expect_numbers_of_the_whole(shape);
  }
}

TEST(SplitFamilies, OtherShapes) {
  DecoderShape shape = splittable_shape(ModelConfig::Family::gpt2);
  shape.config.pre_norm = shape.final_norm = false;
  expect_numbers_of_the_whole(shape);
  shape = splittable_shape(ModelConfig::Family::llama);
  shape.config.head = ModelConfig::Head::score;
  expect_numbers_of_the_whole(shape);
  shape = splittable_shape(ModelConfig::Family::qwen3);
  shape.trained = [](const std::string& name) { return name.find("k_norm") != std::string::npos; };
  expect_numbers_of_the_whole(shape);
}

TEST(SplitFamilies, AdaptersHaveTheNumbersOfTheWhole) {
  for (const ModelConfig::Family family : all_families) {
    SCOPED_TRACE(name_of(family));
    for (const bool dora : {false, true}) {
      DecoderShape shape = splittable_shape(family);
      AdapterShape adapter{.rank = 3};
      adapter.dora = dora;
      adapt_all(shape, adapter);
      expect_numbers_of_the_whole(shape);
    }
  }
}

TEST(SplitUnits, ARankHasThoseOfItsBlocks) {
  DecoderShape shape = shape_of(Golden("llama"));
  shape.adapters = [](const std::string&) { return std::optional(AdapterShape{}); };
  shape.trained = [](const std::string& name) { return name.find("norm") != std::string::npos; };
  shape.tensor = {4, 0, 4};
  const std::vector<UnitSpec> all = Decoder(shape).units();
  shape.tensor = {4, 2, 2};
  std::vector<std::string> expected, own;
  for (const UnitSpec& unit : all) {
    if (unit.tensor_block == -1 || unit.tensor_block >= 2) expected.push_back(unit.name);
  }
  for (const UnitSpec& unit : Decoder(shape).units()) own.push_back(unit.name);
  EXPECT_EQ(own, expected);
  EXPECT_LT(own.size(), all.size());
  const ModelConfig& c = shape.config;
  EXPECT_EQ(all[1].parameters(), (c.vocab_size + 3) / 4 * c.d_model) << "after the adapter, which all blocks share";
}

TEST(SplitUnits, WorkOfATokenIsThatOfAllRanks) {
  DecoderShape shape = splittable_shape(ModelConfig::Family::llama);
  shape.config.vocab_size = shape.tokens = 40;  // blocks of one size
  const double whole = Decoder(shape).flops_per_token(32);
  for (const TensorShare& share : {TensorShare{4, 0, 4}, TensorShare{4, 2, 2}, TensorShare{4, 1, 1}}) {
    shape.tensor = share;
    EXPECT_DOUBLE_EQ(Decoder(shape).flops_per_token(32), whole) << share.count;
  }
}

TEST(SharedRows, BoundGenerationByOneBlock) {
  for (const int64_t ranks : {1, 2, 4}) {
    Decoder model(splittable_shape(ModelConfig::Family::llama));
    Arena arena;
    PassPlan passes{DType::f32, 32 / ranks, true};
    passes.context = ranks;
    passes.context_blocks = 4;
    model.plan(arena, passes);
    EXPECT_EQ(model.planned_rows(), 8) << ranks;
  }
}

}  // namespace
}  // namespace llmtrain::test
