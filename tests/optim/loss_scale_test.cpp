#include "optim/loss_scale.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace llmtrain {
namespace {

PrecisionConfig fp16() {
  PrecisionConfig config;
  config.compute = PrecisionConfig::Compute::fp16;
  return config;
}

/// Runs of tests/reference/loss_scale/grad_scaler.txt: results of torch.amp.GradScaler.
struct GoldenRun {
  int64_t times = 0;
  bool overflow = false, stepped = false;
  double scale = 0;
};
struct GoldenCase {
  double initial = 0;
  int64_t interval = 0;
  std::vector<GoldenRun> runs;
};

std::vector<GoldenCase> golden_cases() {
  std::ifstream file("tests/reference/loss_scale/grad_scaler.txt");
  std::vector<GoldenCase> cases;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string first, number;
    words >> first;
    if (first == "case") {
      GoldenCase& c = cases.emplace_back();
      words >> number >> c.interval;
      c.initial = std::stod(number);
    } else {
      GoldenRun& r = cases.back().runs.emplace_back();
      r.times = std::stoll(first);
      words >> r.overflow >> r.stepped >> number;
      r.scale = std::stod(number);
    }
  }
  return cases;
}

/// Steps in which the scaler differs from the golden one.
int64_t differences(const GoldenCase& c, const PrecisionConfig& config) {
  LossScaler scaler(config);
  int64_t wrong = 0;
  for (const GoldenRun& run : c.runs) {
    for (int64_t i = 0; i < run.times; ++i) {
      const bool skipped = scaler.update(run.overflow);
      wrong += skipped != run.stepped && scaler.scale() == run.scale ? 0 : 1;
    }
  }
  return wrong;
}

TEST(LossScaler, DoesAsGradScaler) {
  const std::vector<GoldenCase> cases = golden_cases();
  ASSERT_EQ(cases.size(), 6u);
  for (const GoldenCase& c : cases) {
    PrecisionConfig config = fp16();
    config.initial_loss_scale = c.initial;
    config.loss_scale_window = c.interval;
    config.min_loss_scale = 1e-30;  // torch's scale has no minimum
    EXPECT_EQ(differences(c, config), 0) << c.initial << ' ' << c.interval;
    ++config.loss_scale_window;
    EXPECT_GT(differences(c, config), 0) << "control";
  }
}

TEST(LossScaler, HasGradScalersDefaults) {
  const GoldenCase c = golden_cases()[0];
  const PrecisionConfig config = fp16();
  EXPECT_EQ(config.initial_loss_scale, c.initial);
  EXPECT_EQ(config.loss_scale_window, c.interval);
}

// Rule of DeepSpeed and Megatron-LM: after this many overflows the scale is halved, then at each further one, until it
// grows.
TEST(LossScaler, HysteresisIsFullAgainAfterGrowth) {
  PrecisionConfig config = fp16();
  config.initial_loss_scale = 64;
  config.loss_scale_window = 3;
  config.loss_scale_hysteresis = 2;
  LossScaler scaler(config);
  const auto after = [&](bool overflow) {
    EXPECT_EQ(scaler.update(overflow), overflow);
    return scaler.scale();
  };
  EXPECT_EQ(after(true), 64);
  EXPECT_EQ(after(true), 32);
  EXPECT_EQ(after(true), 16) << "used up";
  EXPECT_EQ(after(false), 16);
  EXPECT_EQ(after(false), 16);
  EXPECT_EQ(after(true), 8) << "clean steps alone do not fill it";
  for (int i = 0; i < 2; ++i) EXPECT_EQ(after(false), 8);
  EXPECT_EQ(after(false), 16) << "three in a row";
  EXPECT_EQ(after(true), 16) << "full again";
  EXPECT_EQ(after(true), 8);
  EXPECT_EQ(scaler.skipped_steps(), 6);
}

TEST(LossScaler, DoesNotExcuseWhereItCannotFall) {
  PrecisionConfig config = fp16();
  config.initial_loss_scale = 6;
  config.min_loss_scale = 4;
  LossScaler scaler(config);
  EXPECT_TRUE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 4);
  EXPECT_FALSE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 4);
  EXPECT_EQ(scaler.skipped_steps(), 1);

  config.loss_scale = 128;
  LossScaler fixed(config);
  EXPECT_FALSE(fixed.update(true));
  for (int i = 0; i < 5000; ++i) EXPECT_FALSE(fixed.update(false));
  EXPECT_EQ(fixed.scale(), 128);
}

TEST(LossScaler, GoesOnFromItsState) {
  PrecisionConfig config = fp16();
  config.loss_scale_window = 5;
  config.loss_scale_hysteresis = 2;
  const auto overflows = [](int i) { return i * i % 7 == 2; };
  LossScaler whole(config), first(config);
  for (int i = 0; i < 200; ++i) {
    whole.update(overflows(i));
    first.update(overflows(i));
    LossScaler second(config), other(config);
    second.restore(first.state());
    ASSERT_EQ(second.scale(), whole.scale()) << i;
    first = second;
    if (i == 20) {
      EXPECT_NE(other.scale(), whole.scale()) << "control: what a new one has";
    }
  }
  EXPECT_EQ(first.skipped_steps(), whole.skipped_steps());

  config.loss_scale = 256;  // changed by the resuming deck
  LossScaler fixed(config);
  fixed.restore(first.state());
  EXPECT_EQ(fixed.scale(), 256);
  EXPECT_EQ(fixed.skipped_steps(), whole.skipped_steps());
}

TEST(LossScaler, ScalesTheMeanLoss) {
  const LossScaler scaler(fp16());
  EXPECT_EQ(scaler.cotangent(4096), 16.0f);
  EXPECT_EQ(scaler.divisor(4096), 65536);
  // The divisor is that of the rounded factor, so that unscaled gradients are those of the mean loss.
  EXPECT_EQ(scaler.divisor(3000), double{scaler.cotangent(3000)} * 3000);
  PrecisionConfig config;
  for (const auto compute :
       {PrecisionConfig::Compute::fp32, PrecisionConfig::Compute::tf32, PrecisionConfig::Compute::bf16}) {
    config.compute = compute;
    LossScaler none(config);
    EXPECT_FALSE(none.active());
    EXPECT_EQ(none.cotangent(3000), 1.0f);
    EXPECT_EQ(none.divisor(3000), 3000);
    EXPECT_FALSE(none.update(true));
    EXPECT_EQ(none.skipped_steps(), 0);
  }
}

}  // namespace
}  // namespace llmtrain
