// Adapters compared with PEFT: tests/reference/make_lora_goldens.py.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "harness/gradient_norm.hpp"
#include "harness/harness.hpp"
#include "kernels/step_decision.hpp"
#include "models/lora_golden.hpp"
#include "optim/optimizer.hpp"

namespace llmtrain::test {
namespace {

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  return std::sqrt(difference / size);
}

class LoraGolden : public ::testing::TestWithParam<std::string>, protected AdaptedModel {
 protected:
  LoraGolden() : AdaptedModel(GetParam()) {}

  /// B = 0, or A = 0 of embeddings, and all else as it is.
  Parameters at_start() const {
    Parameters out = parameters();
    for (auto& [name, values] : out) {
      if (name.ends_with("lora_B.weight") || name.ends_with("lora_embedding_A")) std::ranges::fill(values, 0.0f);
    }
    return out;
  }
  std::vector<float> base_logits(DType compute) const {
    DecoderShape alone = shape;
    alone.adapters = nullptr;
    TestModel m(alone, compute, static_cast<int64_t>(rows.ids.size()));
    m.set(base());
    return m.logits(rows);
  }
  /// Largest relative error of the gradients of the first loss.
  double gradient_error(TestModel& m) const {
    double largest = 0;
    for (auto& [name, gradient] : m.gradients()) {
      for (float& g : gradient) g = static_cast<float>(g / tokens);
      if (trained.contains(name)) largest = std::max(largest, lora.gradient_error(name, gradient));
    }
    return largest;
  }
};

TEST_P(LoraGolden, GradientsAndTenSteps) {
  TestModel m = model();
  m.set(parameters());
  const auto optimizer = make_optimizer({.weight_decay = golden.number("adamw_weight_decay")});
  const auto losses = lora.doubles("losses").values, norms = lora.doubles("grad_norms").values;
  for (int t = 1; t <= 10; ++t) {
    const double loss = m.differentiate({rows}) / tokens, norm = gradient_norm(m.params()) / tokens;
    const auto step = static_cast<size_t>(t) - 1;
    EXPECT_NEAR(loss, losses[step], (t == 1 ? 1e-5 : 1e-4) * losses[step]) << "step " << t;
    EXPECT_NEAR(norm, norms[step], 1e-4 * norms[step]) << "step " << t;
    if (t == 1) {
      std::set<std::string> found;
      for (const auto& [name, gradient] : m.gradients()) {
        if (trained.contains(name)) {
          found.insert(name);
        } else {
          EXPECT_THAT(gradient, ::testing::Each(0.0f)) << name << " keeps its values";
        }
      }
      EXPECT_EQ(found, trained);
      EXPECT_LT(gradient_error(m), 2e-5);
    }
    optimizer->update(m.params(), {t, golden.number("adamw_learning_rate"), clip_factor(norm, 1.0) / tokens}, stream());
  }
  EXPECT_NEAR(m.score(rows) / tokens, losses[10], 1e-4 * losses[10]);
  const Parameters before = parameters(), after = m.parameters();
  const double bound = std::max(1e-4, 4 * lora.number("fp64_after_error"));
  for (const auto& [name, values] : after) {
    EXPECT_EQ(values != before.at(name), trained.contains(name)) << name;
    if (!trained.contains(name)) continue;
    EXPECT_LT(relative_distance(values, lora.floats("after/" + name).values), bound) << name;
  }
}

TEST_P(LoraGolden, MistakesAreSeen) {
  adapter.scale *= 1.01;
  TestModel wrong_scale = model();
  wrong_scale.set(parameters());
  const double loss = lora.doubles("losses").values[0];
  wrong_scale.differentiate({rows});
  EXPECT_GT(gradient_error(wrong_scale), 1e-3);
  adapter.scale /= 1.01;
  // A of one module in the place of another's, or turned by a row.
  Parameters swapped = parameters();
  std::vector<std::vector<float>*> a;
  for (auto& [name, values] : swapped) {
    if (name.ends_with("lora_A.weight")) a.push_back(&values);
  }
  const auto other = std::find_if(a.begin() + 1, a.end(), [&](const auto* v) { return v->size() == a[0]->size(); });
  if (other != a.end()) {
    std::swap(*a[0], **other);
  } else {
    std::rotate(a[0]->begin(), a[0]->begin() + static_cast<int64_t>(a[0]->size()) / adapter.rank, a[0]->end());
  }
  TestModel m = model();
  m.set(swapped);
  EXPECT_GT(std::abs(m.differentiate({rows}) / tokens - loss), 1e-5 * loss);
  EXPECT_GT(gradient_error(m), 1e-3);
}

TEST_P(LoraGolden, BitsAreTheBasesWithoutAdaptersAndAtTheStart) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    const std::vector<float> expected = base_logits(compute);
    TestModel m = model(compute);
    m.set(parameters());
    EXPECT_NE(m.logits(rows), expected) << "control: with adapters";
    m.context().adapters = false;
    EXPECT_EQ(m.logits(rows), expected);
    m.context().adapters = true;
    m.set(at_start());
    m.decoder().set_magnitudes(m.params(), stream());
    EXPECT_EQ(m.logits(rows), expected);
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LoraGolden, ::testing::ValuesIn(lora_cases()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace llmtrain::test
