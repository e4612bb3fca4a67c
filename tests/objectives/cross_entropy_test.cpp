// Cross-entropy with further terms: values and gradients equal torch's (tests/reference/objectives), and the plain
// cross-entropy is what it is without them.

#include <gtest/gtest.h>

#include <cmath>

#include "objectives/golden_step.hpp"

namespace llmtrain {
namespace {

using nlohmann::json;
using test::GoldenStep;
using test::largest_difference;
using test::Values;

ObjectiveConfig config_of(const json& item) { return {item["z_loss"], item["label_smoothing"], item["entropy_bonus"]}; }

TEST(AuxiliaryTerms, EqualTorch) {
  for (const json& item : GoldenStep::golden()["cases"]) {
    const GoldenStep terms(make_cross_entropy(config_of(item)));
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
      const GoldenStep fewer(make_cross_entropy(without));
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
