#include "generate/sampler.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "core/philox.hpp"

namespace llmtrain {
namespace {

const std::vector<float> logits = {0.5f, 2.0f, -1.0f, 2.0f, 1.0f};

std::map<int32_t, int> draw(const SamplingOptions& options, int n) {
  std::map<int32_t, int> counts;
  for (int i = 0; i < n; ++i) ++counts[sample_token(logits, options, random_bits(7, 0, static_cast<uint64_t>(i)))];
  return counts;
}

/// Chi-square of observed counts against softmax(logits / temperature) over `kept` tokens.
double chi_square(const std::map<int32_t, int>& counts, const std::vector<int32_t>& kept, double temperature, int n) {
  double mass = 0;
  for (int32_t t : kept) mass += std::exp(logits[static_cast<size_t>(t)] / temperature);
  double sum = 0;
  int seen = 0;
  for (int32_t t : kept) {
    const double expected = n * std::exp(logits[static_cast<size_t>(t)] / temperature) / mass;
    const int observed = counts.contains(t) ? counts.at(t) : 0;
    sum += (observed - expected) * (observed - expected) / expected;
    seen += observed;
  }
  EXPECT_EQ(seen, n) << "only kept tokens are drawn";
  return sum;
}

TEST(SampleToken, GreedyTakesTheLowestOfEqualMaxima) {
  EXPECT_EQ(sample_token(logits, {.temperature = 0}, 0xFFFFFFFFu), 1);
  EXPECT_EQ(sample_token(std::vector<float>{3.0f}, {.temperature = 0}, 0), 0);
}

TEST(SampleToken, FrequenciesFollowTheSoftmax) {
  const std::vector<int32_t> all = {0, 1, 2, 3, 4};
  EXPECT_LT(chi_square(draw({}, 20000), all, 1.0, 20000), 18.5);  // 4 degrees of freedom, p = 0.001
  EXPECT_LT(chi_square(draw({.temperature = 0.5}, 20000), all, 0.5, 20000), 18.5);
  EXPECT_GT(chi_square(draw({.temperature = 0.5}, 20000), all, 1.0, 20000), 18.5) << "another temperature shows";
}

TEST(SampleToken, TopKAndTopPKeepTheMostProbable) {
  EXPECT_LT(chi_square(draw({.top_k = 3}, 20000), {1, 3, 4}, 1.0, 20000), 13.8);
  EXPECT_EQ(draw({.top_k = 1}, 100), (std::map<int32_t, int>{{1, 100}}));
  // Probabilities: 0.37, 0.37, 0.14, 0.08, 0.02. The second maximum is needed for 0.5, the third for 0.8.
  EXPECT_LT(chi_square(draw({.top_p = 0.5}, 20000), {1, 3}, 1.0, 20000), 10.8);
  EXPECT_LT(chi_square(draw({.top_p = 0.8}, 20000), {1, 3, 4}, 1.0, 20000), 13.8);
  EXPECT_EQ(draw({.top_p = 1e-9}, 100), (std::map<int32_t, int>{{1, 100}})) << "one token always remains";
  EXPECT_EQ(draw({.top_k = 99}, 1000), draw({}, 1000)) << "more than there are changes nothing";
}

TEST(SampleToken, ExtremeBitsAndLogits) {
  const std::vector<float> far = {-1e30f, 80.0f, std::numeric_limits<float>::lowest()};
  EXPECT_EQ(sample_token(far, {}, 0), 1);
  EXPECT_EQ(sample_token(far, {}, 0xFFFFFFFFu), 1);
  EXPECT_EQ(sample_token(logits, {}, 0), 1) << "the most probable comes first";
  EXPECT_EQ(sample_token(logits, {}, 0xFFFFFFFFu), 2) << "the least probable last";
}

}  // namespace
}  // namespace llmtrain
