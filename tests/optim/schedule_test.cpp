#include "optim/schedule.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "core/deck/deck.hpp"

namespace llmtrain {
namespace {

using Name = ScheduleConfig::Name;

ScheduleConfig schedule(Name name, int64_t warmup = 10) {
  ScheduleConfig config;
  config.name = name;
  config.learning_rate = 1e-3;
  config.warmup_steps = warmup;
  if (name == Name::cosine_with_restarts) config.num_cycles = 1;
  return config;
}

/// Factor on the peak at T = 110.
double factor(const ScheduleConfig& config, int64_t step) {
  return learning_rate(config, step, 110) / config.learning_rate;
}

TEST(Schedule, HasThePublishedCheckValues) {
  const auto expect = [](const ScheduleConfig& config, double a, double b, double c) {
    EXPECT_NEAR(factor(config, 35), a, 1e-6);
    EXPECT_NEAR(factor(config, 60), b, 1e-6);
    EXPECT_NEAR(factor(config, 85), c, 1e-6);
    EXPECT_NEAR(factor(config, 5), 0.5, 1e-6);
  };
  expect(schedule(Name::linear), 0.75, 0.5, 0.25);
  expect(schedule(Name::cosine), 0.853553, 0.5, 0.146447);
  ScheduleConfig wave = schedule(Name::cosine);
  wave.num_cycles = 1;
  expect(wave, 0.5, 0, 0.5);
  ScheduleConfig restarts = schedule(Name::cosine_with_restarts);
  restarts.num_cycles = 2;
  expect(restarts, 0.5, 1, 0.5);
  ScheduleConfig polynomial = schedule(Name::polynomial);
  polynomial.power = 2;
  polynomial.learning_rate = 1e-4;
  expect(polynomial, 0.562937, 0.25075, 0.063437);
}

TEST(Schedule, FirstStepOfAWarmupHasRateZero) {
  for (Name name : {Name::constant_with_warmup, Name::linear, Name::cosine, Name::cosine_with_restarts,
                    Name::cosine_with_min_lr, Name::polynomial, Name::inverse_sqrt, Name::warmup_stable_decay}) {
    EXPECT_EQ(factor(schedule(name), 0), 0) << name_of(name);
    EXPECT_EQ(factor(schedule(name, 0), 0), 1) << name_of(name);
    EXPECT_EQ(factor(schedule(name), 10), 1) << name_of(name);
  }
  EXPECT_EQ(factor(schedule(Name::constant), 0), 1) << "constant has no warm-up at all";
}

/// Sets the key of a case of the golden file.
void set_key(ScheduleConfig& config, const std::string& name, const std::string& value) {
  DeckKeys keys;
  config.visit(keys);
  const DeckKeys::Key* key = keys.find("schedule." + name);
  ASSERT_NE(key, nullptr) << name;
  key->parse(value);
}

// Rates of Transformers' get_scheduler, tests/reference/make_schedule_goldens.py.
TEST(Schedule, AgreesWithTransformers) {
  std::ifstream file("tests/reference/schedules/learning_rates.txt");
  int compared = 0, off_by_one_step = 0;
  for (std::string line; std::getline(file, line); ++compared) {
    std::istringstream words(line);
    std::string name, keys, rate;
    int64_t warmup = 0, total = 0, step = 0;
    double peak = 0;
    words >> name >> warmup >> total >> peak >> keys >> step >> rate;
    ScheduleConfig config;
    set_key(config, "name", name);
    config.learning_rate = peak;
    config.warmup_steps = warmup;
    if (config.name == Name::cosine_with_restarts) config.num_cycles = 1;
    std::istringstream pairs(keys == "-" ? "" : keys);
    for (std::string pair; std::getline(pairs, pair, ',');) {
      set_key(config, pair.substr(0, pair.find('=')), pair.substr(pair.find('=') + 1));
    }
    const double expected = std::strtod(rate.c_str(), nullptr);
    const double tolerance = 1e-14 * peak;
    EXPECT_NEAR(learning_rate(config, step, total), expected, tolerance) << line;
    off_by_one_step += std::abs(learning_rate(config, step + 1, total) - expected) > tolerance ? 1 : 0;
  }
  EXPECT_GE(compared, 500);
  EXPECT_GT(off_by_one_step, compared / 2) << "control: a schedule that is one step ahead must differ";
}

TEST(Schedule, RatiosAreRoundedUp) {
  ScheduleConfig config = schedule(Name::linear, 0);
  config.warmup_ratio = 0.05;
  EXPECT_EQ(warmup_steps(config, 110), 6);  // ceil(5.5)
  EXPECT_EQ(warmup_steps(config, 100), 5);
  EXPECT_NEAR(factor(config, 3), 0.5, 1e-15);
  ScheduleConfig stable = schedule(Name::warmup_stable_decay);
  stable.decay_ratio = 0.2;
  stable.decay_type = ScheduleConfig::DecayType::linear;
  EXPECT_EQ(factor(stable, 88), 1);
  EXPECT_NEAR(factor(stable, 99), 0.5, 1e-15);
  EXPECT_EQ(factor(stable, 110), 0);
}

TEST(Schedule, IsDefinedForRunsShorterThanItsParts) {
  for (size_t i = 0; i < enum_names<Name>.size(); ++i) {
    ScheduleConfig config = schedule(static_cast<Name>(i), 10);
    config.decay_steps = 50;
    for (int64_t total : {0, 1, 5, 10, 11, 12}) {
      for (int64_t step = 0; step <= total + 20; ++step) {
        const double rate = learning_rate(config, step, total);
        EXPECT_TRUE(std::isfinite(rate) && rate >= 0 && rate <= config.learning_rate)
            << enum_names<Name>[i] << " " << step << " of " << total << ": " << rate;
      }
    }
  }
}

}  // namespace
}  // namespace llmtrain
