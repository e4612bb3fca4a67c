// The losses of grpo, rloo and ppo are TRL's, and their derivatives belong to them.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "objectives/token_objective.hpp"

namespace llmtrain {
namespace {

using nlohmann::json;

json golden(const std::string& name) {
  std::ifstream file("tests/reference/reinforcement/" + name);
  return json::parse(file);
}

/// Completions behind a prompt of two tokens each, whose rows are not trained.
struct Rows {
  explicit Rows(const json& from) : lengths(from["lengths"].get<std::vector<int64_t>>()) {
    segments.push_back(0);
    for (const int64_t length : lengths) {
      segments.push_back(segments.back() + 2 + static_cast<int32_t>(length));
      for (int64_t t = 0; t < 2 + length; ++t) weights.push_back(t < 2 ? 0.0F : 1.0F);
    }
    logp = column(from["logp"]);
    entropy = column(from["entropy"]);
    rollout.old_logp = column(from["old"]);
    rollout.reference_logp = column(from["reference"]);
    rollout.longest = from.value("longest", int64_t{0});
    rollout.advantages.assign(weights.size(), 0.0F);
  }

  /// Spreads numbers of trained tokens over their rows.
  std::vector<float> column(const json& tokens) const {
    std::vector<float> rows(weights.size(), 0.0F);
    size_t next = 0;
    for (size_t row = 0; row < rows.size(); ++row) {
      if (weights[row] > 0) rows[row] = tokens.at(next++).get<float>();
    }
    return rows;
  }
  void set_advantages(const json& completions) {
    for (size_t c = 0; c < lengths.size(); ++c) {
      for (const size_t row : trained_rows(view(), c)) rollout.advantages[row] = completions.at(c).get<float>();
    }
  }
  TokenColumns view() const { return {logp, entropy, value, weights, segments, &rollout}; }
  StepPlan step() const {
    StepPlan plan;
    plan.samples.resize(lengths.size());
    for (const int64_t length : lengths) plan.trained_tokens += length;
    return plan;
  }

  std::vector<int64_t> lengths;
  std::vector<int32_t> segments;
  std::vector<float> weights, logp, entropy, value;
  RolloutColumns rollout;
};

/// Values of a step of these rows, by name, and its derivatives.
struct Evaluated {
  std::map<std::string, double> metrics;
  TokenResults results;
  double count = 0;
};

Evaluated evaluate(Objective& objective, const Rows& rows) {
  Evaluated found;
  auto& tokens = dynamic_cast<TokenObjective&>(objective);
  tokens.start_results(rows.view(), found.results);
  tokens.evaluate(rows.view(), found.results);
  std::vector<double> sums;
  for (const std::vector<float>& values : found.results.values) {
    sums.push_back(0);
    for (const float one : values) sums.back() += static_cast<double>(one);
  }
  const int64_t count = objective.count(rows.step());
  found.count = static_cast<double>(count);
  for (size_t m = 0; m < sums.size(); ++m) {
    found.metrics[std::string(objective.metrics()[m].name)] = metric_value(objective.metrics(), sums, m, count);
  }
  return found;
}

/// Number of values that are not the expected ones within 1e-6, of which the first are printed.
class Comparison {
 public:
  void compare(const std::string& name, double value, double expected) {
    if (std::abs(value - expected) <= 1e-6 * std::max(1.0, std::abs(expected))) return;
    if (++count_ < 4) std::printf("%s: %.10g, not %.10g\n", name.c_str(), value, expected);
  }
  void compare(const std::string& name, const Rows& rows, const std::vector<float>& slopes, double count,
               const json& expected) {
    size_t next = 0;
    for (size_t row = 0; row < slopes.size(); ++row) {
      const double slope = rows.weights[row] > 0 ? expected.at(next++).get<double>() : 0;
      compare(name, static_cast<double>(slopes[row]) / count, slope);
    }
  }
  void compare(const Evaluated& found, const json& one) {
    compare("loss", found.metrics.at("loss"), one["value"]);
    for (const auto& [name, value] : one["metrics"].items()) compare(name, found.metrics.at(name), value);
  }
  int count() const { return count_; }

 private:
  int count_ = 0;
};

template <class Change>
int differences_of_completions(const std::string& file, const Change& change) {
  const json goldens = golden(file);
  Rows rows(goldens);
  rows.set_advantages(goldens["advantages"]);
  Comparison comparison;
  for (const json& one : goldens["cases"]) {
    GrpoConfig config;
    const auto& names = enum_names<GrpoConfig::Loss>;
    const auto name = std::ranges::find(names, one["loss"].get<std::string>());
    config.loss = static_cast<GrpoConfig::Loss>(name - names.begin());
    config.beta = one.value("beta", 0.0);
    config.epsilon = one.value("epsilon", 0.2);
    config.epsilon_high = one.value("epsilon_high", 0.0);
    config.delta = one.value("delta", 0.0);
    change(config);
    const std::unique_ptr<Objective> objective = make_grpo(config);
    const Evaluated found = evaluate(*objective, rows);
    comparison.compare(found, one);
    comparison.compare("slope", rows, found.results.logp, found.count, one["slopes"]);
  }
  return comparison.count();
}

TEST(PolicyLoss, OfGroupsAndItsDerivativesAreTrls) {
  EXPECT_EQ(differences_of_completions("grpo.json", [](GrpoConfig&) {}), 0);
  const auto narrower = [](GrpoConfig& config) { config.epsilon -= 0.05; };
  EXPECT_GT(differences_of_completions("grpo.json", narrower), 10) << "the control";
}

TEST(PolicyLoss, OfWholeCompletionsIsTrls) {
  EXPECT_EQ(differences_of_completions("rloo.json", [](GrpoConfig&) {}), 0);
  const auto by_token = [](GrpoConfig& config) { config.loss = GrpoConfig::Loss::grpo; };
  EXPECT_GT(differences_of_completions("rloo.json", by_token), 10) << "the control";
}

struct PpoRows : Rows {
  explicit PpoRows(const json& goldens) : Rows(goldens) {
    value = column(goldens["value"]);
    rollout.advantages = column(goldens["advantages"]);
    rollout.returns = column(goldens["returns"]);
    rollout.old_values = column(goldens["old_values"]);
  }
};

template <class Change>
int differences_of_ppo(const Change& change) {
  const json goldens = golden("ppo.json");
  const PpoRows rows(goldens);
  Comparison comparison;
  for (const json& one : goldens["cases"]) {
    PpoConfig config;
    config.clip = one.value("cliprange", 0.2);
    config.value_clip = one.value("cliprange_value", 0.2);
    config.value_coefficient = one.value("vf_coef", 0.1);
    change(config);
    const std::unique_ptr<Objective> objective = make_ppo(config);
    const Evaluated found = evaluate(*objective, rows);
    comparison.compare(found, one);
    comparison.compare("slope", rows, found.results.logp, found.count, one["logp_slopes"]);
    comparison.compare("value slope", rows, found.results.value, found.count, one["value_slopes"]);
  }
  return comparison.count();
}

TEST(PolicyLoss, OfPpoAndTheCriticsAreTrls) {
  EXPECT_EQ(differences_of_ppo([](PpoConfig&) {}), 0);
  EXPECT_GT(differences_of_ppo([](PpoConfig& config) { config.value_clip += 0.1; }), 3) << "the control";
  EXPECT_GT(differences_of_ppo([](PpoConfig& config) { config.entropy_coefficient = 0.1; }), 0) << "the control";
}

/// Largest difference between a derivative and the change of the loss, relative to the largest derivative.
double derivative_error(Objective& objective, Rows rows, std::vector<float> Rows::*input,
                        std::vector<float> TokenResults::*slopes) {
  const Evaluated at = evaluate(objective, rows);
  const auto loss_at = [&](size_t row, float x) {
    std::vector<float>& values = rows.*input;
    const float kept = std::exchange(values[row], x);
    const double loss = evaluate(objective, rows).metrics.at("loss") * at.count;
    values[row] = kept;
    return loss;
  };
  double error = 0, largest = 0;
  for (size_t row = 0; row < rows.weights.size(); ++row) {
    const float x = (rows.*input)[row], low = x - 0.004F, high = x + 0.004F;
    const double change = (loss_at(row, high) - loss_at(row, low)) / (static_cast<double>(high) - low);
    const double slope = (at.results.*slopes)[row];
    error = std::max(error, std::abs(change - slope));
    largest = std::max(largest, std::abs(slope));
  }
  return error / largest;
}

// Points of the goldens are not at kinks, but for ratios of 1 with advantages of 0.
TEST(PolicyLoss, DerivativesAreFiniteDifferences) {
  const json goldens = golden("ppo.json");
  PpoConfig ppo;
  ppo.entropy_coefficient = 0.25;
  const std::unique_ptr<Objective> actor = make_ppo(ppo);
  const PpoRows rows(goldens);
  EXPECT_LT(derivative_error(*actor, rows, &Rows::logp, &TokenResults::logp), 1e-3);
  EXPECT_LT(derivative_error(*actor, rows, &Rows::entropy, &TokenResults::entropy), 1e-3);
  EXPECT_LT(derivative_error(*actor, rows, &Rows::value, &TokenResults::value), 1e-3);
  EXPECT_GT(derivative_error(*actor, rows, &Rows::value, &TokenResults::logp), 0.1) << "the control";
  const json of_groups = golden("grpo.json");
  Rows groups(of_groups);
  groups.set_advantages(of_groups["advantages"]);
  for (const auto loss : {GrpoConfig::Loss::grpo, GrpoConfig::Loss::dr_grpo, GrpoConfig::Loss::dapo}) {
    GrpoConfig config;
    config.loss = loss;
    config.beta = 0.1;
    EXPECT_LT(derivative_error(*make_grpo(config), groups, &Rows::logp, &TokenResults::logp), 1e-3);
  }
}

TEST(PolicyLoss, StartsOnPolicy) {
  const json goldens = golden("ppo.json");
  PpoRows rows(goldens);
  rows.logp = rows.rollout.old_logp;
  const std::unique_ptr<Objective> actor = make_ppo({}), group = make_grpo({});
  std::map<std::string, double> metrics = evaluate(*actor, rows).metrics;
  EXPECT_EQ(metrics.at("val/ratio"), 1);
  EXPECT_EQ(metrics.at("policy/approxkl_avg"), 0);
  EXPECT_EQ(metrics.at("policy/clipfrac_avg"), 0);
  EXPECT_EQ(metrics.at("rollout/mismatch"), 0);
  EXPECT_EQ(evaluate(*group, rows).metrics.at("rollout/mismatch"), 0);
  rows.logp[3] = std::nextafter(rows.logp[3], 0.0F);
  EXPECT_GT(evaluate(*actor, rows).metrics.at("rollout/mismatch"), 0) << "the control";
  EXPECT_GT(evaluate(*group, rows).metrics.at("rollout/mismatch"), 0) << "the control";
}

}  // namespace
}  // namespace llmtrain
