#include "data/stream/mixture.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "core/error.hpp"

namespace llmtrain {
namespace {

using testing::ElementsAre;

/// Returns true if, of samples [0, n) for every n below `samples`, each source has its share to within less than one.
bool keeps_shares(const Mixture& mixture, const std::vector<double>& weights, int64_t samples) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> taken(weights.size(), 0);
  for (int64_t n = 0; n < samples; ++n) {
    const Mixture::Choice choice = mixture(n);
    if (choice.number != taken[choice.source]) return false;
    ++taken[choice.source];
    for (size_t j = 0; j < weights.size(); ++j) {
      const double share = weights[j] / sum * static_cast<double>(n + 1);
      if (std::abs(share - static_cast<double>(taken[j])) >= 1) return false;
    }
  }
  return true;
}

std::vector<int64_t> shares_of(const std::vector<double>& weights) {
  const Mixture mixture(weights);
  return {mixture.shares().begin(), mixture.shares().end()};
}

TEST(Mixture, SharesAreExactOverACycle) {
  EXPECT_THAT(shares_of({0.7, 0.3}), ElementsAre(7, 3));
  EXPECT_THAT(shares_of({1, 1, 1}), ElementsAre(1, 1, 1));
  EXPECT_THAT(shares_of({0.25, 0.5}), ElementsAre(1, 2));
  EXPECT_THAT(shares_of({600, 0.5}), ElementsAre(1200, 1));
  EXPECT_EQ(Mixture(std::vector<double>{0.123456, 0.876544}).cycle(), 15625);
  EXPECT_EQ(Mixture(std::vector<double>{std::sqrt(2.0), 1}).cycle(), int64_t{1} << 20);
  EXPECT_THAT(shares_of({1e-9, 1}), ElementsAre(1, (1 << 20) - 1)) << "at least one";
}

TEST(Mixture, EveryPrefixKeepsTheShares) {
  EXPECT_TRUE(keeps_shares(Mixture(std::vector<double>{0.7, 0.3}), {0.7, 0.3}, 1000));
  EXPECT_TRUE(keeps_shares(Mixture(std::vector<double>{5}), {5}, 100));
  EXPECT_TRUE(keeps_shares(Mixture(std::vector<double>{std::sqrt(2.0), 1}), {std::sqrt(2.0), 1}, 100000));
  EXPECT_FALSE(keeps_shares(Mixture(std::vector<double>{0.7, 0.3}), {0.6, 0.4}, 1000)) << "the control";
  std::mt19937 random(2);
  for (int trial = 0; trial < 100; ++trial) {
    std::vector<double> weights(1 + random() % 12);
    for (double& weight : weights) weight = 0.01 * (1 + random() % (trial % 2 == 0 ? 100 : 5));
    ASSERT_TRUE(keeps_shares(Mixture(weights), weights, 20000)) << trial;
  }
}

TEST(Mixture, IsAPureFunction) {
  const Mixture mixture(std::vector<double>{0.5, 0.2, 0.3});
  const Mixture::Choice far = mixture(int64_t{1} << 40),
                        again = Mixture(std::vector<double>{5, 2, 3})(int64_t{1} << 40);
  EXPECT_EQ(far.source, again.source);
  EXPECT_EQ(far.number, again.number);
  EXPECT_THROW(Mixture(std::vector<double>{1, 0}), Error);
  EXPECT_THROW(Mixture(std::vector<double>{}), Error);
}

}  // namespace
}  // namespace llmtrain
