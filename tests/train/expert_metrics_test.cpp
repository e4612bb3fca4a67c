#include "train/expert_metrics.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "harness/harness.hpp"

namespace llmtrain {
namespace {

using testing::ElementsAre;

/// The losses of routers after a pass of two rows, where layers have these statistics.
class Pass {
 public:
  Pass(int64_t experts, std::vector<int64_t> layers, std::vector<int64_t> statistics)
      : losses_({1, 1}, experts, std::move(layers)) {
    losses_.plan(arena_);
    memory_ = DeviceBuffer(arena_.bytes());
    arena_.commit(memory_.data());
    losses_.begin_step(1, 1);
    losses_.begin_pass(test::stream());
    const auto bytes = static_cast<int64_t>(statistics.size() * sizeof(int64_t));
    copy_to_device(losses_.statistics(0).data, statistics.data(), bytes, test::stream());
    losses_.end_pass(2, nullptr, test::stream());
  }
  RouterLosses& losses() { return losses_; }
  RouterLosses::Values values() { return losses_.sum(test::communicator()); }

 private:
  Arena arena_;
  DeviceBuffer memory_;
  RouterLosses losses_;
};

constexpr int64_t unit = int64_t{1} << 24;

TEST(ExpertMetrics, LayersHaveTheirNumbersInTheModel) {
  Pass pass(2, {1, 3}, {2, 0, unit, unit, 8 * unit, /**/ 1, 1, unit, unit, 4 * unit});
  StepRecord record;
  add_expert_metrics(record, pass.values());
  std::vector<std::string> names;
  std::vector<double> values;
  for (const NamedValue& value : record.details) {
    names.push_back(value.name);
    values.push_back(value.value);
  }
  EXPECT_THAT(names, ElementsAre("experts/layer_1/load_max", "experts/layer_1/load_min", "experts/layer_3/load_max",
                                 "experts/layer_3/load_min"));
  EXPECT_THAT(values, ElementsAre(2, 0, 1, 1));
  values.clear();
  for (const NamedValue& value : record.metrics) values.push_back(value.value);
  EXPECT_THAT(values, ElementsAre(2, 0, 0.5, 1, 3)) << "load_max, load_min, entropy, balance, z";
}

TEST(ExpertMetrics, OneExpertIsEquallyBusy) {
  Pass pass(1, {0}, {2, 2 * unit, 0});
  EXPECT_EQ(pass.values().entropy, 1);
}

// The sums of layers exceed 64 bits.
TEST(ExpertMetrics, RoutersThatDivergeHaveALargeLoss) {
  constexpr int64_t large = int64_t{1} << 62;
  Pass pass(1, {0, 1, 2, 3}, {2, 2 * unit, large, 2, 2 * unit, large, 2, 2 * unit, large, 2, 2 * unit, large});
  EXPECT_EQ(pass.losses().loss().value(), 1 + 0x1p37);
}

}  // namespace
}  // namespace llmtrain
