#include "kernels/experts.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/experts_checks.hpp"
#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::stream;
using test::Values;

using Score = RoutingRule::Score;
using GroupScore = RoutingRule::GroupScore;

/// Choices and weights of rows of logits.
struct Routed {
  Values choices, weights, scores;
  std::vector<int64_t> statistics;
};

std::vector<int64_t> integers(const Array& array) {
  const std::vector<unsigned char> bytes = array.bytes();
  std::vector<int64_t> values(bytes.size() / sizeof(int64_t));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

Routed routed(const Values& logits, const RoutingRule& rule, const Values& bias = {}, int64_t padding = 0) {
  const auto rows = static_cast<int64_t>(logits.size()) / rule.experts;
  Array scores(DType::f32, {rows, rule.experts}, logits), log_sum(DType::f32, {rows});
  Array weights(DType::f32, {rows, rule.per_token}), added(DType::f32, {std::ssize(bias)}, bias);
  Array choices(DType::i32, {rows, rule.per_token}), statistics(DType::i64, {router_statistics(rule.experts)});
  route({scores, log_sum, choices, weights}, rule, bias.empty() ? Tensor() : Tensor(added), statistics, rows - padding,
        stream());
  return {choices.values(), weights.values(), scores.values(), integers(statistics)};
}

// Probabilities 1/10, 2/10, 3/10, 4/10.
const Values fractions = {std::log(1.0), std::log(2.0), std::log(3.0), std::log(4.0)};

TEST(Route, ChoosesTheHighestScores) {
  const Routed plain = routed(fractions, {4, 2});
  EXPECT_EQ(plain.choices, (Values{2, 3}));
  EXPECT_NEAR(plain.weights[0], 0.3, 1e-6);
  EXPECT_NEAR(plain.weights[1], 0.4, 1e-6);
  const Routed normalised = routed(fractions, {4, 2, Score::softmax, true, 7});
  EXPECT_NEAR(normalised.weights[0], 3, 1e-6);
  EXPECT_NEAR(normalised.weights[1], 4, 1e-6);
  const Routed sigmoid = routed({0, 1, 2, 3}, {4, 1, Score::sigmoid});
  EXPECT_EQ(sigmoid.choices, (Values{3}));
  EXPECT_NEAR(sigmoid.weights[0], 1 / (1 + std::exp(-3.0)), 1e-6);
}

TEST(Route, OfEqualScoresTheFirstAreChosen) {
  EXPECT_EQ(routed({1, 1, 1, 1}, {4, 2}).choices, (Values{0, 1}));
  EXPECT_EQ(routed({0, 1, 1, 1}, {4, 2}).choices, (Values{1, 2}));
  const double nan = std::nan("");
  EXPECT_EQ(routed({nan, nan, nan, nan}, {4, 2}).choices, (Values{0, 1})) << "a router that diverged";
}

// The bias selects and does not weigh; groups are chosen by the sum of their best two.
TEST(Route, ABiasAndGroupsRestrictTheChoice) {
  const Routed biased = routed(fractions, {4, 1}, {1, 0, 0, 0});
  EXPECT_EQ(biased.choices, (Values{0}));
  EXPECT_NEAR(biased.weights[0], 0.1, 1e-6);
  const Values logits = {3, 0, 0, /**/ 2, 2, 0};
  EXPECT_EQ(routed(logits, {6, 1, Score::sigmoid}).choices, (Values{0}));
  EXPECT_EQ(routed(logits, {6, 1, Score::sigmoid, false, 1, 2, 1, GroupScore::best_two}).choices, (Values{3}));
  EXPECT_EQ(routed(logits, {6, 1, Score::sigmoid, false, 1, 2, 1, GroupScore::best}).choices, (Values{0}));
}

TEST(Route, StatisticsAreSumsWithoutPadding) {
  Values logits = fractions;
  logits.insert(logits.end(), {5, 0, 0, 0});
  logits.insert(logits.end(), {0, 9, 9, 0});
  const Routed r = routed(logits, {4, 2}, {}, 1);
  EXPECT_EQ(std::vector<int64_t>(r.statistics.begin(), r.statistics.begin() + 4), (std::vector<int64_t>{1, 1, 1, 1}));
  for (size_t e = 0; e < 4; ++e) {
    EXPECT_NEAR(static_cast<double>(r.statistics[4 + e]) * router_unit, r.scores[e] + r.scores[4 + e], 1e-6);
  }
  const double first = std::log(10.0), second = std::log(std::exp(5.0) + 3);
  EXPECT_NEAR(static_cast<double>(r.statistics[8]) * router_unit, first * first + second * second, 1e-4);
}

TEST(SortPairs, GroupsByExpertThenByRowAndBlock) {
  const std::vector<int32_t> choices = {0, 2, 1, 2, 0, 1, 2, 3};  // of 4 rows, 2 each
  std::vector<int32_t> order(8);
  std::vector<int64_t> ends(2 * 5);
  const std::vector<int64_t> blocks = {1, 4};
  sort_pairs_on_host(order, ends, choices, blocks);
  EXPECT_EQ(order, (std::vector<int32_t>{0, 4, 2, 5, 1, 3, 6, 7}));
  EXPECT_EQ(ends, (std::vector<int64_t>{1, 2, 5, 7, 8, 2, 4, 7, 8, 8}));
}

TEST(Pairs, AreGatheredScaledAndAdded) {
  const Values x = {1, 2, 3, 4, 5, 6};  // 3 rows
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Array rows(dtype, {3, 2}, x), pairs(dtype, {2, 2}), scaled(dtype, {2, 2});
    Array order(DType::i32, {2}, {5, 0}), weights(DType::f32, {3, 2}, {0.5, 9, 9, 9, 9, 2});
    gather_pairs(pairs, rows, order, 2, stream());
    EXPECT_EQ(pairs.values(), (Values{5, 6, 1, 2}));
    scale_pairs(scaled, pairs, weights, order, stream());
    EXPECT_EQ(scaled.values(), (Values{10, 12, 0.5, 1}));
    Array dweights(DType::f32, {3, 2}), dy(dtype, {2, 2}, {1, 1, 1, -1});
    scale_pairs_backward(dweights, dy, pairs, weights, order, stream());
    EXPECT_EQ(dweights.values(), (Values{-1, 0, 0, 0, 0, 11}));
    EXPECT_EQ(dy.values(), (Values{2, 2, 0.5, -0.5}));
    EXPECT_THROW(gather_pairs(scaled, rows, {}, 1, stream()), Error) << "the control: one pair a row";
  }
  Array sum(DType::f32, {3, 2}, {1, 1, 1, 1, 1, 1}), terms(DType::f32, {2, 2}, {1, 2, 3, 4});
  add_pairs(sum, terms, Array(DType::i32, {2}, {5, 0}), 2, stream());
  EXPECT_EQ(sum.values(), (Values{4, 5, 1, 1, 2, 3}));
  Array all(DType::f32, {3, 2}, {9, 9, 9, 9, 9, 9});
  scatter_pairs(all, terms, Array(DType::i32, {2}, {2, 0}), stream());
  EXPECT_EQ(all.values(), (Values{3, 4, 9, 9, 1, 2}));
}

TEST(Pairs, BiasesHaveTheWeightsOfPairs) {
  Array order(DType::i32, {2}, {5, 0}), weights(DType::f32, {3, 2}, {0.5, 9, 9, 9, 9, 2});
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    Array rows(DType::f32, {2, 2}, {1, 2, 3, 4}), bias(dtype, {2}, {10, 20}), dy(dtype, {2, 2}, {1, 1, 1, -1});
    add_pair_biases(rows, bias, weights, order, stream());
    EXPECT_EQ(rows.values(), (Values{21, 42, 8, 14}));
    Array dweights(DType::f32, {3, 2}, {1, 1, 1, 1, 1, 1});
    pair_bias_backward_weights(dweights, dy, bias, order, stream());
    EXPECT_EQ(dweights.values(), (Values{-9, 1, 1, 1, 1, 31}));
    Array dbias(DType::f32, {2}, {7, 7});
    pair_bias_backward(dbias, dy, weights, order, false, stream());
    EXPECT_EQ(dbias.values(), (Values{2.5, 1.5}));
    pair_bias_backward(dbias, dy, weights, order, true, stream());
    EXPECT_EQ(dbias.values(), (Values{5, 3}));
    EXPECT_THROW(add_pair_biases(rows, Array(dtype, {3}), weights, order, stream()), Error) << "another width";
  }
}

TEST(Sigmoid, IsTheOneOfGates) {
  Array x(DType::f32, {3}, {0, std::log(3.0), -200}), y(DType::f32, {3}), dx(DType::f32, {3});
  sigmoid(y, x, stream());
  const Values expected = {0.5, 0.75, 0};
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(y.values()[i], expected[i], 1e-7);
  sigmoid_backward(dx, Array(DType::f32, {3}, {2, -16, 1}), y, stream());
  const Values slopes = {0.5, -3, 0};
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(dx.values()[i], slopes[i], 1e-6);
}

TEST(Route, RulesThatNoRowCanFollowAreRefused) {
  EXPECT_NO_THROW(check_rule({4, 4}));
  EXPECT_NO_THROW(check_rule({64, 1, Score::softmax, false, 1, 64, 1}));
  const std::vector<RoutingRule> wrong = {{0, 1},
                                          {4, 0},
                                          {4, 5},
                                          {6, 1, Score::softmax, false, 1, 4, 1},
                                          {4, 1, Score::softmax, false, 1, 2, 3},
                                          {4, 1, Score::softmax, false, 1, 2, 0},
                                          {4, 3, Score::softmax, false, 1, 2, 1},
                                          {65, 1, Score::softmax, false, 1, 65, 1}};
  for (const RoutingRule& rule : wrong) {
    EXPECT_THROW(check_rule(rule), Error) << rule.experts << " " << rule.per_token << " " << rule.groups;
  }
}

TEST(Route, StatisticsOfRoutersThatDivergeAreFinite) {
  const int64_t largest = int64_t{1} << 40;
  for (const double logit : {1e4, 1e30, std::nan("")}) {
    const std::vector<int64_t> statistics = routed({logit, 0, logit, 0}, {2, 1}).statistics;
    EXPECT_EQ(statistics[4], 2 * largest) << logit;
  }
}

}  // namespace
}  // namespace llmtrain
