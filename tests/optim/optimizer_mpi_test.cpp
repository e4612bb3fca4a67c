#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

#include "core/arena.hpp"
#include "harness/errors.hpp"
#include "harness/gradient_norm.hpp"
#include "harness/harness.hpp"
#include "harness/whole_parameters.hpp"
#include "kernels/step_decision.hpp"
#include "optim/optimizer.hpp"

namespace llmtrain {
namespace {

using test::communicator;
using test::stream;

constexpr int64_t groups = 3;

/// A matrix with decay and a vector without, in each of two units; element i of parameter p starts at initial_value and
/// has gradient_value in each group.
struct Setting {
  int zero_stage = 1;
  double changed_element = 0;  ///< added to one gradient element of one group: the norm must change
  double lr_scale = 1;         ///< of the matrices
  bool hidden = false;         ///< the matrices are
};

float initial_value(int unit, int param, int64_t i) {
  return 0.01F * static_cast<float>(i % 37 - 18) + 0.5F * static_cast<float>(unit) - 0.25F * static_cast<float>(param);
}
/// Multiples of 1/64: sums over groups and their squares are exact in fp32 and fp64.
float gradient_value(int64_t group, int unit, int param, int64_t i) {
  return static_cast<float>((i * 7 + group * 5 + unit * 3 + param) % 129 - 64) / 64;
}
float gradient_sum(int unit, int param, int64_t i) {
  float sum = 0;
  for (int64_t g = 0; g < groups; ++g) sum += gradient_value(g, unit, param, i);
  return sum;
}

std::vector<UnitSpec> toy_units(const Setting& setting) {
  std::vector<UnitSpec> units;
  for (int u = 0; u < 2; ++u) {
    const std::string name = "unit" + std::to_string(u);
    const auto whole = [&](const std::string& param, int64_t rows) {
      return std::vector<ParamSlice>{{name + param, 0, rows}};
    };
    UnitSpec unit{name, {}, false};
    unit.params.push_back({name + ".matrix", 19, 31, true, Initializer::zeros(), whole(".matrix", 19)});
    unit.params.push_back({name + ".vector", 301, 1, false, Initializer::zeros(), whole(".vector", 301)});
    unit.params.front().lr_scale = setting.lr_scale;
    unit.params.front().hidden = setting.hidden;
    units.push_back(unit);
  }
  return units;
}

class Step {
 public:
  explicit Step(const Setting& setting) : setting_(setting), store_(toy_units(setting), options()) {
    store_.plan(arena_);
    memory_ = DeviceBuffer(arena_.bytes());
    arena_.commit(memory_.data());
    store_.start(communicator(), stream());
    store_.initialize(1);
    for_each_param([&](int unit, int param, int64_t numel) {
      std::vector<float> values(static_cast<size_t>(numel));
      for (int64_t i = 0; i < numel; ++i) values[static_cast<size_t>(i)] = initial_value(unit, param, i);
      test::set_parameter(store_, unit, param, values.data());
    });
    store_.publish_weights();
    sum_gradients();
  }

  double norm() { return test::gradient_norm(store_); }

  /// Parameters after one update with this factor on the gradients.
  std::vector<std::vector<float>> updated(const OptimizerConfig& config, double rate, double factor) {
    UpdateArgs args;
    args.learning_rate = rate;
    args.gradient_scale = factor;
    const auto optimizer = make_optimizer(config);
    optimizer->update(store_, args, stream());
    store_.finish_update();
    std::vector<std::vector<float>> parameters;
    for_each_param([&](int unit, int param, int64_t numel) {
      parameters.emplace_back(static_cast<size_t>(numel));
      test::gather_parameter(store_, unit, param, parameters.back().data());
    });
    return parameters;
  }

  template <class Function>
  void for_each_param(const Function& function) {
    for (int u = 0; u < store_.units().size(); ++u) {
      const std::vector<ParamSpec>& params = store_.units()[u].spec.params;
      for (size_t p = 0; p < params.size(); ++p) function(u, static_cast<int>(p), params[p].numel());
    }
  }

 private:
  ParamStoreOptions options() const {
    ParamStoreOptions o;
    o.zero_stage = setting_.zero_stage;
    o.rank = communicator().rank();
    o.size = communicator().size();
    o.groups = groups;
    return o;
  }

  void sum_gradients() {
    store_.reducer().begin_step(groups);
    for (int64_t round = 0; round < store_.reducer().rounds(); ++round) {
      const int64_t group = store_.reducer().begin_round(round);
      store_.reducer().begin_micro_batch(true, true);
      for (int u = store_.units().size() - 1; u >= 0; --u) {
        if (group >= 0) write_gradient(group, u);
        store_.reduce(u);
      }
    }
    store_.reducer().finish();
  }

  void write_gradient(int64_t group, int unit) {
    for (int p = 0; p < 2; ++p) {
      const Tensor gradient = store_.gradient(unit, p);
      std::vector<float> values(static_cast<size_t>(gradient.numel()));
      for (int64_t i = 0; i < gradient.numel(); ++i) {
        values[static_cast<size_t>(i)] = gradient_value(group, unit, p, i);
      }
      if (group == 1 && unit == 1 && p == 1) values[300] += static_cast<float>(setting_.changed_element);
      copy_to_device(gradient.data, values.data(), gradient.bytes(), stream());
      stream().synchronize();
    }
  }

  Setting setting_;
  Arena arena_;
  DeviceBuffer memory_;
  ParamStore store_;
};

double expected_norm() {
  double squares = 0;
  for (int u = 0; u < 2; ++u) {
    for (int64_t i = 0; i < 19 * 31; ++i) squares += std::pow(gradient_sum(u, 0, i), 2);
    for (int64_t i = 0; i < 301; ++i) squares += std::pow(gradient_sum(u, 1, i), 2);
  }
  return std::sqrt(squares);
}

TEST(GradientNorm, IsExactForEveryStageAndRankCount) {
  for (int stage = 0; stage <= 3; ++stage) {
    EXPECT_EQ(Step({stage}).norm(), expected_norm()) << "stage " << stage;
    EXPECT_NE(Step({stage, 1.0 / 64}).norm(), expected_norm()) << "stage " << stage;
  }
}

TEST(ClipFactor, IsTorchs) {
  EXPECT_EQ(clip_factor(10, 1), 1 / (10 + 1e-6));
  EXPECT_EQ(clip_factor(2, 2), 2 / (2 + 1e-6));
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_EQ(clip_factor(0, 1), 1);
  EXPECT_EQ(clip_factor(1e30, 0), 1) << "0 means no clipping";
}

/// First step of torch.optim.AdamW (m and v start at 0), in double.
double adamw_first_step(const OptimizerConfig& c, double rate, double p, double g, bool decays) {
  p *= 1 - rate * (decays ? c.weight_decay : 0);
  const double m = (1 - c.beta1) * g / (1 - c.beta1), v = (1 - c.beta2) * g * g / (1 - c.beta2);
  return p - rate * m / (std::sqrt(v) + c.epsilon);
}

/// Largest distance from the reference over all parameters.
double distance(const OptimizerConfig& told, const OptimizerConfig& reference, double factor, double told_factor,
                int stage) {
  constexpr double rate = 0.1;
  Step step({stage});
  const std::vector<std::vector<float>> seen = step.updated(told, rate, told_factor);
  double worst = 0;
  size_t at = 0;
  step.for_each_param([&](int unit, int param, int64_t numel) {
    for (int64_t i = 0; i < numel; ++i) {
      const double wanted = adamw_first_step(reference, rate, initial_value(unit, param, i),
                                             factor * gradient_sum(unit, param, i), param == 0);
      worst = test::larger(worst, std::abs(seen[at][static_cast<size_t>(i)] - wanted));
    }
    ++at;
  });
  return worst;
}

TEST(AdamW, ScalesDecaysAndUpdatesAsTorchDoes) {
  OptimizerConfig config;
  config.weight_decay = 0.5;
  config.epsilon = 0.03;  // large enough that the factor on the gradients has an effect
  OptimizerConfig without_decay = config;
  without_decay.weight_decay = 0;
  for (int stage = 0; stage <= 3; ++stage) {
    EXPECT_LT(distance(config, config, 0.01, 0.01, stage), 1e-6) << "stage " << stage;
    EXPECT_GT(distance(without_decay, config, 0.01, 0.01, stage), 1e-3) << "stage " << stage;
    EXPECT_GT(distance(config, config, 0.01, 0.02, stage), 1e-3) << "stage " << stage;
  }
}

TEST(WeightDecay, OfAHiddenMatrixHasNoFactorOfItsRate) {
  OptimizerConfig config;
  config.weight_decay = 0.5;
  for (const auto name : {OptimizerConfig::Name::adamw, OptimizerConfig::Name::lion}) {
    config.name = name;
    const auto decayed = [&](double lr_scale, bool hidden) {
      return Step({.lr_scale = lr_scale, .hidden = hidden}).updated(config, 0.1, 0);
    };
    const auto plain = decayed(1, false);
    EXPECT_EQ(decayed(0.25, true), plain);
    EXPECT_NE(decayed(0.25, false), plain) << "control: an adapter's";
    EXPECT_NEAR(plain[0][1], 0.95F * initial_value(0, 0, 1), 1e-7);
  }
}

}  // namespace
}  // namespace llmtrain
