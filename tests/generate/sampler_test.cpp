#include "generate/sampler.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "core/philox.hpp"
#include "harness/errors.hpp"

namespace llmtrain {
namespace {

const std::vector<float> logits = {0.5f, 2.0f, -1.0f, 2.0f, 1.0f};

std::map<int32_t, int> draw(const SamplingOptions& options, int n) {
  std::map<int32_t, int> counts;
  for (int i = 0; i < n; ++i) ++counts[sample_token(logits, options, random_bits(7, 0, static_cast<uint64_t>(i)))];
  return counts;
}

/// Returns chi-square of observed counts against softmax(logits / temperature) over `kept` tokens.
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
  // Probabilities: 0.37, 0.37, 0.14, 0.08, 0.02. The second maximum is needed for 0.5, the third for 0.8.
  EXPECT_LT(chi_square(draw({.top_p = 0.5}, 20000), {1, 3}, 1.0, 20000), 10.8);
  EXPECT_LT(chi_square(draw({.top_p = 0.8}, 20000), {1, 3, 4}, 1.0, 20000), 13.8);
  EXPECT_EQ(draw({.top_p = 1e-9}, 100).size(), 1U) << "one token always remains";
  EXPECT_EQ(draw({.top_k = 99}, 1000), draw({}, 1000)) << "more than there are changes nothing";
}

// Without filters a token is drawn from sums of blocks; min_p too small to exclude a token takes the weights one by
// one.
TEST(SampleToken, SumsOfBlocksGiveTheTokenOfSingleWeights) {
  for (const size_t vocabulary : {3, 1023, 1024, 4099, 50257}) {
    for (const double width : {0.01, 3.0, 60.0}) {
      std::vector<float> many(vocabulary);
      for (size_t i = 0; i < vocabulary; ++i) {
        many[i] = static_cast<float>(width * (static_cast<double>(random_bits(1, vocabulary, i)) * 0x1p-31 - 1));
      }
      int moved = 0;
      for (uint64_t i = 0; i < 40; ++i) {
        const uint32_t bits = i < 2 ? (i == 0 ? 0 : 0xFFFFFFFFu) : random_bits(2, vocabulary, i);
        const int32_t drawn = sample_token(many, {.temperature = 0.9}, bits);
        EXPECT_EQ(drawn, sample_token(many, {.temperature = 0.9, .min_p = 1e-300}, bits)) << vocabulary << ", " << bits;
        moved += drawn != sample_token(many, {.temperature = 0.9}, bits ^ 0x40000000u) ? 1 : 0;
      }
      EXPECT_TRUE(moved > 0 || vocabulary == 3) << "control: other bits draw other tokens";
    }
  }
}

TEST(SampleToken, ExtremeBitsAndLogits) {
  const std::vector<float> far = {-1e30f, 80.0f, std::numeric_limits<float>::lowest()};
  EXPECT_EQ(sample_token(far, {}, 0), 1);
  EXPECT_EQ(sample_token(far, {}, 0xFFFFFFFFu), 1);
  EXPECT_EQ(sample_token(logits, {}, 0), 0) << "in the order of ids";
  EXPECT_EQ(sample_token(logits, {}, 0xFFFFFFFFu), 4);
  EXPECT_EQ(sample_token(logits, {.top_k = 3}, 0), 1) << "the lowest id that is left";
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, inf}) {
    for (const double temperature : {0.0, 1.0}) {
      EXPECT_THROW(sample_token(std::vector<float>{1.0f, bad}, {.temperature = temperature}, 0), UserError);
    }
  }
}

TEST(SampleToken, OfEqualsTopKKeepsAllAndTopPTheLowerIds) {
  EXPECT_EQ(draw({.top_k = 1}, 200).size(), 2U) << "1 and 3 are equally probable";
  EXPECT_EQ(draw({.top_p = 1e-9}, 100), (std::map<int32_t, int>{{1, 100}}));
}

struct Golden {
  std::string name;
  std::vector<float> logits;
  SamplingOptions options;
  std::vector<int32_t> occurred;
  std::vector<double> probabilities;
};

/// tests/reference/make_sampling_goldens.py
std::vector<Golden> read_goldens() {
  std::ifstream file("tests/reference/sampling/distributions.json");
  const nlohmann::json document = nlohmann::json::parse(file);
  std::vector<Golden> goldens;
  for (const nlohmann::json& c : document["cases"]) {
    const nlohmann::json& o = c["options"];
    goldens.push_back({c["logits"].get<std::string>() + " " + o.dump(),
                       document["logits"][c["logits"].get<std::string>()],
                       {.temperature = o.value("temperature", 1.0),
                        .top_k = o.value("top_k", int64_t{0}),
                        .top_p = o.value("top_p", 1.0),
                        .min_p = o.value("min_p", 0.0),
                        .repetition_penalty = o.value("repetition_penalty", 1.0)},
                       c["occurred"],
                       c["probabilities"]});
  }
  return goldens;
}

/// Returns the largest difference from Transformers' probability of a token; 1 if another set of tokens is kept. Which
/// of equally probable tokens top-p removes is arbitrary in Transformers (torch.sort), but their number is not: tokens
/// are compared in the order of their logits.
double difference(const Golden& golden, const SamplingOptions& options) {
  std::vector<float> penalized = golden.logits;
  penalize_repetition(penalized, golden.occurred, options.repetition_penalty);
  const std::vector<double> weights = token_weights(penalized, options);
  double mass = 0, worst = 0;
  for (const double weight : weights) mass += weight;
  std::vector<std::pair<float, double>> ours, theirs;
  for (size_t id = 0; id < weights.size(); ++id) {
    ours.emplace_back(penalized[id], weights[id] / mass);
    theirs.emplace_back(penalized[id], golden.probabilities[id]);
  }
  std::sort(ours.begin(), ours.end());
  std::sort(theirs.begin(), theirs.end());
  for (size_t i = 0; i < ours.size(); ++i) {
    const double a = ours[i].second, b = theirs[i].second;
    if ((a > 1e-30) != (b > 1e-30)) return 1;  // below this, fp32 keeps nothing of a token
    worst = test::larger(worst, std::abs(a - b));
  }
  return worst;
}

TEST(TokenWeights, AreTransformersDistributions) {
  const std::vector<Golden> goldens = read_goldens();
  ASSERT_EQ(goldens.size(), 130U);
  for (const Golden& golden : goldens) EXPECT_LT(difference(golden, golden.options), 2e-6) << golden.name;
}

TEST(TokenWeights, ThatAreAnotherDistributionShow) {
  std::map<std::string, int> shown;
  for (const Golden& golden : read_goldens()) {
    SamplingOptions other = golden.options;
    other.temperature *= 1.01;
    shown["temperature"] += difference(golden, other) > 1e-4 ? 1 : 0;
    other = golden.options;
    other.top_k += 1;
    shown["top_k"] += difference(golden, other) > 1e-4 ? 1 : 0;
    other = golden.options;
    other.top_p *= 0.9;
    shown["top_p"] += difference(golden, other) > 1e-4 ? 1 : 0;
    other = golden.options;
    other.min_p += 0.05;
    shown["min_p"] += difference(golden, other) > 1e-4 ? 1 : 0;
    other = golden.options;
    other.repetition_penalty *= 1.01;
    shown["repetition_penalty"] += difference(golden, other) > 1e-4 ? 1 : 0;
  }
  for (const char* option : {"temperature", "top_k", "top_p", "min_p", "repetition_penalty"}) {
    EXPECT_GT(shown[option], 20) << option;
  }
}

}  // namespace
}  // namespace llmtrain
