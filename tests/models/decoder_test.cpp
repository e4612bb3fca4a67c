// The decoder compared with PyTorch: tests/reference/README.md explains the origin and accuracy of the numbers.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <random>

#include "harness/errors.hpp"
#include "harness/gradient_norm.hpp"
#include "harness/harness.hpp"
#include "kernels/step_decision.hpp"
#include "models/test_model.hpp"
#include "optim/optimizer.hpp"

namespace llmtrain::test {
namespace {

/// Relative, as L2 norms.
struct Errors {
  double logits = 0, gradients = 0;
};

class DecoderGolden : public ::testing::TestWithParam<std::string> {
 protected:
  DecoderGolden() : golden(GetParam()), rows(rows_of(golden)), count(static_cast<int64_t>(rows.ids.size())) {}

  std::map<std::string, std::vector<float>> parameters() const {
    std::map<std::string, std::vector<float>> out;
    for (const std::string& name : golden.names("params")) out[name] = golden.floats("params/" + name).values;
    return out;
  }

  /// `gradient` of parameter `name` without the elements that are zero in exact arithmetic.
  std::vector<float> without_zeros(const std::string& name, std::vector<float> gradient) const {
    for (const Golden::ZeroRange& zero : golden.zero_gradients()) {
      if (zero.name == name) gradient.erase(gradient.begin() + zero.begin, gradient.begin() + zero.end);
    }
    return gradient;
  }

  Errors errors_of(DType dtype, uint32_t batches) const;

  Golden golden;
  Rows rows;
  int64_t count;
};

/// |a - b| / |b|, L2 norms.
double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double difference = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double{a[i]} - double{b[i]}, 2);
    size += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / size);
}

double max_difference(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = larger(largest, std::abs(double{a[i]} - double{b[i]}));
  return largest;
}

TEST_P(DecoderGolden, ParametersHaveTheOuterNames) {
  TestModel m(shape_of(golden), DType::f32, count);
  std::vector<std::string> names;
  for (const auto& [name, value] : m.parameters()) {
    names.push_back(name);
    EXPECT_EQ(value.size(), golden.floats("params/" + name).values.size()) << name;
  }
  EXPECT_EQ(names, golden.names("params"));
}

TEST_P(DecoderGolden, Fp32LogitsLossAndGradients) {
  TestModel m(shape_of(golden), DType::f32, count);
  m.set(parameters());
  const auto expected = golden.floats("logits").values;
  EXPECT_LT(max_difference(m.logits(rows), expected), 5e-5);

  add_router_losses(m, golden);
  const auto tokens = static_cast<double>(TestModel::trained({rows}));
  const double loss = m.differentiate({rows}) / tokens;
  EXPECT_NEAR(loss, golden.scalar("loss"), 1e-5 * golden.scalar("loss"));
  for (auto& [name, gradient] : m.gradients()) {
    if (name.ends_with("e_score_correction_bias")) {
      EXPECT_TRUE(std::ranges::all_of(gradient, [](float g) { return g == 0; })) << name;
      continue;
    }
    for (float& g : gradient) g = static_cast<float>(g / tokens);
    EXPECT_LT(golden.gradient_error(name, gradient), 1e-5) << name;
  }
}

TEST_P(DecoderGolden, AWrongModelIsSeen) {
  DecoderShape wrong = shape_of(golden);
  wrong.config.norm_epsilon *= 10;
  TestModel m(wrong, DType::f32, count);
  m.set(parameters());
  EXPECT_GT(max_difference(m.logits(rows), golden.floats("logits").values), 1e-4);
}

TEST_P(DecoderGolden, TenAdamWSteps) {
  TestModel m(shape_of(golden), DType::f32, count);
  m.set(parameters());
  add_router_losses(m, golden);
  OptimizerConfig config;
  config.weight_decay = golden.number("adamw_weight_decay");
  const auto optimizer = make_optimizer(config);
  const auto tokens = static_cast<double>(TestModel::trained({rows}));
  const auto losses = golden.doubles("losses").values, norms = golden.doubles("grad_norms").values;
  for (int t = 1; t <= 10; ++t) {
    const double loss = m.differentiate({rows}) / tokens;
    const double norm = gradient_norm(m.params()) / tokens;
    EXPECT_NEAR(loss, losses[static_cast<size_t>(t) - 1], 1e-4) << "step " << t;
    EXPECT_NEAR(norm, norms[static_cast<size_t>(t) - 1], 1e-3 * norm) << "step " << t;
    optimizer->update(m.params(), {t, golden.number("adamw_learning_rate"), clip_factor(norm, 1.0) / tokens}, stream());
  }
  EXPECT_NEAR(m.differentiate({rows}) / tokens, losses[10], 1e-4);
  EXPECT_GT(std::abs(losses[10] - losses[0]), 1e-2) << "the steps must matter";
}

/// tests/reference/models/bf16_errors.txt
Errors autocast_errors(const std::string& name) {
  std::ifstream file(Golden::folder() / "bf16_errors.txt");
  std::string found;
  Errors errors;
  while (file >> found >> errors.logits >> errors.gradients) {
    if (found == name) return errors;
  }
  ADD_FAILURE() << "no line of " << name;
  return {};
}

/// Another batch of the golden's kind: its documents' lengths, random tokens, and a mask of the same kind if its
/// targets are masked (the rules of random_batch in tests/reference/make_model_goldens.py).
Rows random_rows(const Rows& like, int64_t vocabulary, uint32_t seed) {
  std::mt19937 rng(seed);
  const bool masked = std::find(like.targets.begin(), like.targets.end(), ignore_target) != like.targets.end();
  Rows rows = like;
  for (size_t d = 0; d + 1 < like.segments.size(); ++d) {
    const int32_t begin = like.segments[d], end = like.segments[d + 1];
    auto token = [&] { return static_cast<int32_t>(rng() % static_cast<uint32_t>(vocabulary)); };
    int32_t next = token();
    for (int32_t i = begin; i < end; ++i) {
      const auto row = static_cast<size_t>(i);
      rows.ids[row] = next;
      next = token();
      const bool hidden = masked && (rng() % 10 == 0 || i - begin < (end - begin) / 5 || i == end - 1);
      rows.targets[row] = hidden ? ignore_target : next;
    }
  }
  return rows;
}

/// Root mean squares over batches, against fp32.
Errors DecoderGolden::errors_of(DType dtype, uint32_t batches) const {
  TestModel exact(shape_of(golden), DType::f32, count), low(shape_of(golden), dtype, count);
  exact.set(parameters());
  low.set(parameters());
  Errors squares;
  for (uint32_t batch = 1; batch <= batches; ++batch) {
    const Rows random = random_rows(rows, golden.integer("vocab_size"), batch);
    squares.logits += std::pow(relative_distance(low.logits(random), exact.logits(random)), 2);
    exact.differentiate({random});
    low.differentiate({random});
    const auto gradients = low.gradients();
    for (const auto& [name, right] : exact.gradients()) {
      if (std::ranges::all_of(right, [](float g) { return g == 0; })) continue;  // of an expert without tokens
      squares.gradients +=
          std::pow(relative_distance(without_zeros(name, gradients.at(name)), without_zeros(name, right)), 2);
    }
  }
  return {std::sqrt(squares.logits / batches), std::sqrt(squares.gradients / batches)};
}

/// 16 batches on both sides, since the error of one batch may be small or large by chance, for instance if the input of
/// a ReLU is near zero.
TEST_P(DecoderGolden, Bf16WithinTwiceAutocastsError) {
  const Errors ours = errors_of(DType::bf16, 16);
  const Errors theirs = autocast_errors(GetParam());
  EXPECT_LT(ours.logits, 2 * theirs.logits);
  EXPECT_LT(ours.gradients, 2 * theirs.gradients);
  EXPECT_GT(ours.gradients, 0.1 * theirs.gradients) << "bf16 must show, or it was not used";
}

/// Three bits more than bf16: an eighth of its errors. Another choice of experts is an error of one size in an eighth
/// of the cases, whose root mean square is sqrt(1/8) = 0.35.
TEST_P(DecoderGolden, Fp16WithinAQuarterOfBf16sAutocastError) {
  const bool chooses = golden.has("n_experts");
  const Errors ours = errors_of(DType::f16, chooses ? 32 : 4);
  const Errors theirs = autocast_errors(GetParam());
  const double fraction = chooses ? 0.6 : 0.25;
  EXPECT_LT(ours.logits, theirs.logits * fraction);
  EXPECT_LT(ours.gradients, theirs.gradients * fraction);
  EXPECT_GT(ours.gradients, 0.1 / 8 * theirs.gradients) << "fp16 must show, or it was not used";
}

// Recomputed activations are bit-identical to kept ones, in every family and with dropout.
TEST_P(DecoderGolden, RecomputationChangesNoBit) {
  DecoderShape shape = shape_of(golden);
  shape.config.dropout = shape.config.attention_dropout = 0.2;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const auto differentiated = [&](Recompute recompute, int64_t step) {
      TestModel m(shape, dtype, count, recompute);
      m.set(parameters());
      m.context().training = true;
      m.context().step = step;
      const double loss = m.differentiate({rows});
      return std::pair(loss, m.gradients());
    };
    const auto expected = differentiated(Recompute::none, 0);
    for (const Recompute level : {Recompute::activation, Recompute::attention, Recompute::block}) {
      EXPECT_TRUE(differentiated(level, 0) == expected) << name_of(level) << ' ' << name_of(dtype);
    }
    EXPECT_NE(differentiated(Recompute::block, 1), expected) << "control: other dropout";
  }
}

TEST_P(DecoderGolden, PackedEqualsUnpacked) {
  if (rows.segments.size() < 3) GTEST_SKIP() << "one document: nothing is packed";
  TestModel packed(shape_of(golden), DType::f32, count), single(shape_of(golden), DType::f32, count);
  packed.set(parameters());
  single.set(parameters());
  std::vector<Rows> documents;
  for (size_t d = 0; d + 1 < rows.segments.size(); ++d) documents.push_back(document_of(rows, d));
  const double together = packed.differentiate({rows}), apart = single.differentiate(documents);
  EXPECT_NEAR(together, apart, 1e-6 * std::abs(together));
  const auto a = packed.gradients(), b = single.gradients();
  for (const auto& [name, gradient] : a) {
    double difference = 0, size = 0;
    const bool fused_bias = name.find("c_attn.bias") != std::string::npos;
    for (size_t i = 0; i < gradient.size(); ++i) {
      // The gradient of a key's bias is zero except for rounding.
      if (fused_bias && i >= gradient.size() / 3 && i < gradient.size() / 3 * 2) continue;
      difference += std::pow(double{gradient[i]} - double{b.at(name)[i]}, 2);
      size += std::pow(double{gradient[i]}, 2);
    }
    EXPECT_LT(std::sqrt(difference), 1e-5 * std::sqrt(size) + 1e-9) << name;
  }
  Rows merged = rows;  // control: one long document is another computation
  merged.segments = {0, static_cast<int32_t>(count)};
  EXPECT_GT(std::abs(packed.differentiate({merged}) - together), 1e-5 * std::abs(together));
}

/// A single loss may agree by chance, here or in PyTorch: the root mean square over all cases is compared.
TEST(DecoderGoldens, Bf16LossesWithinTwiceAutocastsError) {
  double ours = 0, theirs = 0;
  for (const std::string& name : Golden::cases()) {
    const Golden golden(name);
    const Rows rows = rows_of(golden);
    TestModel m(shape_of(golden), DType::bf16, static_cast<int64_t>(rows.ids.size()));
    std::map<std::string, std::vector<float>> parameters;
    for (const std::string& p : golden.names("params")) parameters[p] = golden.floats("params/" + p).values;
    m.set(parameters);
    if (golden.has("router_aux") || golden.has("router_z_loss")) continue;  // no loss of tokens alone
    const double loss = m.score(rows) / static_cast<double>(TestModel::trained({rows}));
    ours += std::pow(loss - golden.scalar("loss"), 2);
    theirs += std::pow(golden.number("bf16", "loss_error"), 2);
  }
  EXPECT_LT(std::sqrt(ours), 2 * std::sqrt(theirs));
  EXPECT_GT(ours, 0.01 * theirs) << "bf16 must show, or it was not used";
}

INSTANTIATE_TEST_SUITE_P(Cases, DecoderGolden, ::testing::ValuesIn(Golden::cases()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace llmtrain::test
