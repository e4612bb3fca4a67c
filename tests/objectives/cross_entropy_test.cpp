// Cross-entropy with further terms: values and gradients equal torch's (tests/reference/objectives), and the plain
// cross-entropy is what it is without them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/exact_sum.hpp"
#include "kernels/kernel_test.hpp"
#include "objectives/objective.hpp"

namespace llmtrain {
namespace {

using nlohmann::json;
using test::Array;
using test::Values;

const json& golden() {
  static const json file = json::parse(std::ifstream("tests/reference/objectives/terms.json"));
  return file;
}

/// One batch through statistics, objective and gradient, as a step runs it.
class Terms {
 public:
  explicit Terms(const ObjectiveConfig& config) : objective(make_cross_entropy(config)) {
    batch.tokens = rows;
    batch.targets = targets_;
    batch.loss_weights = weights_;
    objective->plan(arena_, rows, 1);
    if (arena_.bytes() > 0) {
      memory_ = DeviceBuffer(arena_.bytes());
      arena_.commit(memory_.data());
    }
    const ObjectiveNeeds needs = objective->needs();
    const TokenStatistics statistics{logp_, lse_, needs.entropy ? entropy_ : Tensor(),
                                     {},    {},   needs.uniform ? uniform_ : Tensor()};
    const TokenCotangents cotangents{dlogp_,
                                     {},
                                     needs.entropy ? dentropy_ : Tensor(),
                                     {},
                                     needs.uniform ? duniform_ : Tensor(),
                                     needs.lse_squared ? dsquared_ : Tensor()};
    objective->cotangents(batch, statistics, cotangents, Array(DType::f32, {1}, {1.0 / counted}), test::stream());
    logprob_forward(statistics, logits_, targets_, vocabulary, test::stream());
    logprob_backward(gradient, logits_, targets_, statistics, cotangents, vocabulary, 0, test::stream());
    const auto metrics = static_cast<int64_t>(objective->metrics().size());
    const Array sums(DType::i64, {metrics, ExactSum::integer_count});
    objective->add_sums(batch, statistics, sums, test::stream());
    for (int64_t m = 0; m < metrics; ++m) {
      ExactSum sum;
      copy_to_host(sum.limbs().data(), sums.tensor().rows(m, 1).data, static_cast<int64_t>(sum.limbs().size_bytes()),
                   test::stream());
      test::stream().synchronize();
      totals.push_back(sum.value());
    }
  }
  double value(size_t metric) const { return metric_value(objective->metrics(), totals, metric, counted); }

  static constexpr int64_t rows = 6, vocabulary = 11, counted = 5;
  std::unique_ptr<Objective> objective;
  Batch batch;
  Array gradient{DType::f32, {rows, vocabulary}};
  std::vector<double> totals;

 private:
  static Values weights() {
    Values weights;
    for (const int target : golden()["targets"].get<std::vector<int>>()) weights.push_back(target >= 0 ? 1 : 0);
    return weights;
  }
  const Array logits_{DType::f32, {rows, vocabulary}, golden()["logits"].get<Values>()};
  const Array targets_{DType::i32, {rows}, golden()["targets"].get<Values>()};
  const Array weights_{DType::f32, {rows}, weights()};
  const Array logp_{DType::f32, {rows}}, lse_{DType::f32, {rows}}, entropy_{DType::f32, {rows}},
      uniform_{DType::f32, {rows}}, dlogp_{DType::f32, {rows}}, dentropy_{DType::f32, {rows}},
      duniform_{DType::f32, {rows}}, dsquared_{DType::f32, {rows}};
  Arena arena_;
  DeviceBuffer memory_;
};

ObjectiveConfig config_of(const json& item) { return {item["z_loss"], item["label_smoothing"], item["entropy_bonus"]}; }

double largest_difference(const Values& found, const Values& expected) {
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) largest = std::max(largest, std::abs(found[i] - expected[i]));
  return largest;
}

TEST(AuxiliaryTerms, EqualTorch) {
  for (const json& item : golden()["cases"]) {
    const Terms terms(config_of(item));
    const auto specs = terms.objective->metrics();
    for (size_t metric = 0; metric < specs.size(); ++metric) {
      const double expected = item["values"][std::string(specs[metric].name)];
      EXPECT_NEAR(terms.value(metric), expected, 1e-6 * (1 + std::abs(expected))) << item << specs[metric].name;
    }
    const auto expected = item["gradient"].get<Values>();
    EXPECT_LT(largest_difference(terms.gradient.values(), expected), 1e-7) << item;
    // Control: without one of the terms, values and gradient are others.
    for (const auto term :
         {&ObjectiveConfig::z_loss, &ObjectiveConfig::label_smoothing, &ObjectiveConfig::entropy_bonus}) {
      ObjectiveConfig without = config_of(item);
      if (without.*term == 0) continue;
      without.*term = 0;
      const Terms fewer(without);
      EXPECT_GT(largest_difference(fewer.gradient.values(), expected), 1e-4) << item;
      EXPECT_GT(std::abs(fewer.value(0) - item["values"]["loss"].get<double>()), 1e-3) << item;
    }
  }
}

TEST(AuxiliaryTerms, AreNamedByTheCoefficients) {
  const auto names = [](const ObjectiveConfig& config) {
    std::string all;
    const auto objective = make_cross_entropy(config);
    for (const MetricSpec& spec : objective->metrics()) all += std::string(spec.name) + ' ';
    return all;
  };
  EXPECT_EQ(names({}), "loss ");
  EXPECT_EQ(names({1e-4, 0, 0}), "loss cross_entropy z_loss ");
  EXPECT_EQ(names({0, 0.1, 0.01}), "loss cross_entropy label_smoothing entropy ");
}

}  // namespace
}  // namespace llmtrain
