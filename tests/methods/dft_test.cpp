// Dynamic fine-tuning: the loss and its gradient equal torch's (tests/reference/objectives), and are not those of the
// cross-entropy, which evaluations measure. tests/decks/sft_test.cpp compares whole steps with TRL's.

#include <gtest/gtest.h>

#include "methods/method.hpp"
#include "objectives/golden_step.hpp"

namespace llmtrain {
namespace {

using test::GoldenStep;
using test::largest_difference;
using test::Values;

TEST(DynamicFinetuning, LossAndGradientEqualTorch) {
  const Config config;
  const Method& method = dynamic_cast<const Method&>(task_rules(Task::dft));
  const GoldenStep step(method.objective(config, Dataset()));
  const nlohmann::json& expected = GoldenStep::golden()["dynamic"];
  const auto gradient = expected["gradient"].get<Values>();
  const auto specs = step.objective->metrics();
  ASSERT_EQ(specs.size(), expected["values"].size());
  for (size_t metric = 0; metric < specs.size(); ++metric) {
    const double value = expected["values"][std::string(specs[metric].name)];
    EXPECT_NEAR(step.value(metric), value, 1e-6 * (1 + value)) << specs[metric].name;
  }
  EXPECT_LT(largest_difference(step.gradient.values(), gradient), 1e-7);

  const GoldenStep plain(method.evaluator(config));
  EXPECT_NEAR(plain.value(0), step.value(1), 1e-9);
  EXPECT_GT(plain.value(0), 2 * step.value(0)) << "control";
  EXPECT_GT(largest_difference(plain.gradient.values(), gradient), 1e-2) << "control";
}

}  // namespace
}  // namespace llmtrain
