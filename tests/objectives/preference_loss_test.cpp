#include "objectives/preference_loss.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace llmtrain {
namespace {

template <class E>
E by_name(const std::string& name) {
  const auto& names = enum_names<E>;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<E>(i);
  }
  throw std::runtime_error("no such name: " + name);
}

DocumentScore score_of(const nlohmann::json& numbers) {
  return {numbers[0].get<double>(), numbers[1].get<double>(), numbers[2].get<int64_t>()};
}

bool near(double value, double expected, double tolerance) {
  return std::abs(value - expected) <= tolerance * std::max(1.0, std::abs(expected));
}

/// Number of losses and derivatives that differ from TRL's, with a configuration that `change` changes.
template <class Change>
int differences(const Change& change) {
  std::ifstream file("tests/reference/preference/losses.json");
  const nlohmann::json goldens = nlohmann::json::parse(file);
  int count = 0;
  for (const nlohmann::json& one : goldens["cases"]) {
    DpoConfig config;
    config.beta = one.value("beta", 0.1);
    config.label_smoothing = one.value("label_smoothing", 0.0);
    config.f_divergence = by_name<DpoConfig::Divergence>(one.value("f_divergence", "reverse_kl"));
    config.f_alpha = one.value("f_alpha", 0.5);
    change(config);
    const bool by_fp32 = one.value("f_divergence", "") == "alpha" || one["loss"] == "orpo";  // TRL has no other
    const double tolerance = by_fp32 ? 2e-5 : 1e-11;
    for (size_t i = 0; i < one["pairs"].size(); ++i) {
      const nlohmann::json &pair = goldens["pairs"][i], &expected = one["pairs"][i];
      PreferencePair scores{score_of(pair[0]), score_of(pair[1])};
      scores.mean_chosen_targets = static_cast<double>(scores.chosen.targets);  // a step of this pair alone
      const PairLoss loss = preference_loss(by_name<PreferenceLoss>(one["loss"]), config, scores);
      const bool same = near(loss.loss, expected[0], tolerance) && near(loss.chosen, expected[1], tolerance) &&
                        near(loss.rejected, expected[2], tolerance);
      if (!same) ++count;
      if (!same && count < 4) {
        std::printf("%s, pair %zu: %.12g %.12g %.12g, not %s\n", one.dump().substr(0, 60).c_str(), i, loss.loss,
                    loss.chosen, loss.rejected, expected.dump().c_str());
      }
    }
  }
  return count;
}

TEST(PreferenceLoss, AndItsDerivativesAreTrls) {
  EXPECT_EQ(differences([](DpoConfig&) {}), 0);
  EXPECT_GT(differences([](DpoConfig& config) { config.beta *= 1.001; }), 100) << "the control";
}

TEST(PreferenceLoss, HasPublishedValuesWherePolicyAndReferenceAgree) {
  DpoConfig config;
  PreferencePair pair{{-10, -10, 5}, {-7, -7, 3}};
  const auto value = [&](PreferenceLoss loss) { return preference_loss(loss, config, pair).loss; };
  EXPECT_NEAR(value(PreferenceLoss::sigmoid), 0.693147, 1e-6);
  EXPECT_NEAR(value(PreferenceLoss::hinge), 1, 1e-12);
  EXPECT_NEAR(value(PreferenceLoss::ipo), 25, 1e-12);
  EXPECT_NEAR(value(PreferenceLoss::ipo_summed), 25, 1e-12);
  EXPECT_NEAR(value(PreferenceLoss::nca_pair), 1.386294, 1e-6);
  EXPECT_NEAR(value(PreferenceLoss::bco_pair), 1.386294, 1e-6);
  EXPECT_NEAR(value(PreferenceLoss::sppo_hard), 50, 1e-12);
  EXPECT_NEAR(value(PreferenceLoss::apo_zero), 1, 1e-12);
  EXPECT_NEAR(value(PreferenceLoss::apo_down), 1, 1e-12);
  EXPECT_NEAR(value(PreferenceLoss::discopop), 0.846574, 1e-6);
  config.label_smoothing = 1e-3;
  EXPECT_NEAR(value(PreferenceLoss::exo_pair), 2.761231, 1e-6);
  EXPECT_NEAR(value(PreferenceLoss::robust), 0.693147, 1e-6);
}

TEST(PreferenceLoss, StaysFiniteFarFromTheReference) {
  DpoConfig config;
  config.label_smoothing = 0.01;
  for (const double far : {-1e4, 1e4}) {
    const PreferencePair pair{{-1e4 + far, -1e4, 50}, {-2e4 - far, -2e4, 50}};
    for (const PreferenceLoss loss : {PreferenceLoss::sigmoid, PreferenceLoss::robust, PreferenceLoss::exo_pair,
                                      PreferenceLoss::discopop, PreferenceLoss::nca_pair, PreferenceLoss::cpo}) {
      const PairLoss result = preference_loss(loss, config, pair);
      EXPECT_TRUE(std::isfinite(result.loss) && std::isfinite(result.chosen) && std::isfinite(result.rejected))
          << name_of(loss) << " at " << far;
    }
  }
}

}  // namespace
}  // namespace llmtrain
