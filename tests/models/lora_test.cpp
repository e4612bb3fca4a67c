// Adapters compared with PEFT: tests/reference/make_lora_goldens.py.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "core/profile.hpp"
#include "harness/gradient_norm.hpp"
#include "harness/harness.hpp"
#include "kernels/step_decision.hpp"
#include "models/test_model.hpp"
#include "optim/optimizer.hpp"

namespace llmtrain::test {
namespace {

using Parameters = std::map<std::string, std::vector<float>>;

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(Golden::folder() / "../lora")) {
    names.push_back(file.path().stem());
  }
  std::ranges::sort(names);
  return names;
}

std::set<std::string> lines(const std::string& text) {
  std::set<std::string> all;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    all.insert(text.substr(at, end - at));
    at = end + 1;
  }
  return all;
}

double relative_distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{b[i]} * b[i];
  }
  return std::sqrt(difference / size);
}

class LoraGolden : public ::testing::TestWithParam<std::string> {
 protected:
  LoraGolden()
      : lora("../lora/" + GetParam()), golden(lora.text("model")), rows(rows_of(golden)), shape(shape_of(golden)) {
    const std::vector<std::string> names = lora.names("grads");
    trained = {names.begin(), names.end()};
    shape.trained = [this](const std::string& name) { return trained.contains(name); };
    adapter = {lora.integer("rank"), lora.number("scale"),        0,
               lora.flag("dora"),    AdapterShape::Init::kaiming, lora.number("learning_rate_ratio")};
    shape.adapters = rule(lines(lora.text("modules")));
    tokens = static_cast<double>(TestModel::trained({rows}));
  }

  AdapterRule rule(const std::set<std::string>& modules) const {
    return [this, modules](const std::string& module) {
      return modules.contains(module) ? std::optional(adapter) : std::nullopt;
    };
  }
  Parameters base() const {
    Parameters out;
    for (const std::string& name : golden.names("params")) out[name] = golden.floats("params/" + name).values;
    return out;
  }
  Parameters parameters() const {
    Parameters out = base();
    for (const std::string& name : lora.names("params")) out[name] = lora.floats("params/" + name).values;
    return out;
  }
  /// B = 0, and A and magnitudes as they are.
  Parameters at_start() const {
    Parameters out = parameters();
    for (auto& [name, values] : out) {
      if (name.ends_with("lora_B.weight")) std::ranges::fill(values, 0.0f);
    }
    return out;
  }
  TestModel model(DType compute = DType::f32, Recompute recompute = Recompute::none) const {
    return {shape, compute, static_cast<int64_t>(rows.ids.size()), recompute};
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

  Golden lora, golden;
  Rows rows;
  DecoderShape shape;
  std::set<std::string> trained;
  AdapterShape adapter;
  double tokens = 0;
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
  EXPECT_GT(std::abs(wrong_scale.differentiate({rows}) / tokens - loss), 1e-5 * loss);
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

TEST_P(LoraGolden, BitsDoNotDependOnRecomputation) {
  for (const DType compute : {DType::f32, DType::bf16}) {
    std::optional<Parameters> expected;
    for (const Recompute level : {Recompute::none, Recompute::activation, Recompute::attention, Recompute::block}) {
      TestModel m = model(compute, level);
      m.set(parameters());
      m.context().training = true;
      m.differentiate({rows, rows});
      const Parameters gradients = m.gradients();
      if (!expected) expected = gradients;
      EXPECT_EQ(gradients, *expected) << name_of(level);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, LoraGolden, ::testing::ValuesIn(case_names()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace llmtrain::test
