#include "core/philox.hpp"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cmath>
#include <set>
#include <vector>

namespace llmtrain {
namespace {

struct KnownAnswer {
  std::array<uint32_t, 4> counter;
  std::array<uint32_t, 2> key;
  std::array<uint32_t, 4> answer;
};

// philox4x32, 10 rounds, from kat_vectors of Random123 (Salmon et al., SC 2011): zeros, ones, digits of pi.
constexpr KnownAnswer known_answers[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

uint64_t join(uint32_t low, uint32_t high) { return uint64_t{high} << 32 | low; }

int different_bits(const Philox4& a, const Philox4& b) {
  int n = 0;
  for (int i = 0; i < 4; ++i) n += std::popcount(a.v[i] ^ b.v[i]);
  return n;
}

TEST(Philox, KnownAnswers) {
  for (const KnownAnswer& k : known_answers) {
    const Philox4 r =
        philox4x32(join(k.key[0], k.key[1]), join(k.counter[2], k.counter[3]), join(k.counter[0], k.counter[1]));
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(r.v[i], k.answer[i]) << i;
  }
  // Control: the result differs when the halves of the counter are swapped.
  const KnownAnswer& pi = known_answers[2];
  const Philox4 wrong =
      philox4x32(join(pi.key[0], pi.key[1]), join(pi.counter[0], pi.counter[1]), join(pi.counter[2], pi.counter[3]));
  EXPECT_NE(wrong.v[0], pi.answer[0]);
}

TEST(Philox, EveryInputBitMatters) {
  const Philox4 base = philox4x32(1, 2, 3);
  for (int bit = 0; bit < 64; ++bit) {
    const uint64_t flip = uint64_t{1} << bit;
    // 128 output bits change with probability 1/2 each: 64 +- 5.7, so 30 is six standard deviations away.
    EXPECT_GT(different_bits(base, philox4x32(1 ^ flip, 2, 3)), 30) << "key bit " << bit;
    EXPECT_GT(different_bits(base, philox4x32(1, 2 ^ flip, 3)), 30) << "high counter bit " << bit;
    EXPECT_GT(different_bits(base, philox4x32(1, 2, 3 ^ flip)), 30) << "low counter bit " << bit;
  }
  EXPECT_EQ(different_bits(base, philox4x32(1, 2, 3)), 0);
}

TEST(Philox, FourElementsShareOneEvaluation) {
  const uint64_t key = 0x0123456789abcdef;
  for (uint64_t element = 0; element < 64; ++element) {
    EXPECT_EQ(random_bits(key, 9, element), philox4x32(key, 9, element / 4).v[element % 4]);
  }
  // Beyond 2^34 elements the counter needs its upper word.
  EXPECT_NE(random_bits(key, 9, 0), random_bits(key, 9, uint64_t{1} << 34));
}

TEST(Philox, KeysOfDifferentUseNeverMeet) {
  std::set<uint64_t> keys;
  size_t count = 0;
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{42}, ~uint64_t{0}}) {
    for (uint32_t purpose = 1; purpose <= static_cast<uint32_t>(RandomPurpose::source_mixing); ++purpose) {
      for (uint64_t a = 0; a < 50; ++a) {
        for (uint64_t b = 0; b < 20; ++b, ++count) {
          keys.insert(random_key(seed, static_cast<RandomPurpose>(purpose), a, b));
        }
      }
    }
  }
  EXPECT_EQ(keys.size(), count);
}

TEST(Philox, UniformNeverReachesItsEnds) {
  EXPECT_GT(random_uniform(0), 0.0);
  EXPECT_LT(random_uniform(0xffffffffu), 1.0);
  EXPECT_GT(static_cast<float>(random_uniform(0)), 0.0f);
  EXPECT_DOUBLE_EQ(random_uniform(0x7fffffffu) + random_uniform(0x80000000u), 1.0);
}

/// Chi-square of 256 equal bins over `count` numbers of one stream.
double chi_square(uint64_t key, uint64_t sequence, uint64_t count, uint64_t stride) {
  std::array<double, 256> bins{};
  for (uint64_t i = 0; i < count; ++i) {
    ++bins[static_cast<size_t>(random_uniform(random_bits(key, sequence, i * stride)) * 256)];
  }
  const double expected = static_cast<double>(count) / 256;
  double sum = 0;
  for (double n : bins) sum += (n - expected) * (n - expected) / expected;
  return sum;
}

TEST(Philox, StreamsAreUniform) {
  // 255 degrees of freedom: mean 255, standard deviation 22.6; five of them on either side.
  for (uint64_t sequence : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 40}) {
    for (uint64_t stride : {uint64_t{1}, uint64_t{4}, uint64_t{1024}}) {
      const uint64_t key = random_key(42, RandomPurpose::residual_dropout, 7, 3);
      EXPECT_NEAR(chi_square(key, sequence, 100'000, stride), 255, 113) << sequence << " " << stride;
    }
  }
}

TEST(Philox, NeighbouringStreamsDoNotCorrelate) {
  const auto correlation = [](uint64_t key1, uint64_t sequence1, uint64_t key2, uint64_t sequence2, uint64_t lag) {
    constexpr uint64_t count = 100'000;
    double sum = 0;
    for (uint64_t i = 0; i < count; ++i) {
      const double x = random_uniform(random_bits(key1, sequence1, i)) - 0.5;
      const double y = random_uniform(random_bits(key2, sequence2, i + lag)) - 0.5;
      sum += x * y;
    }
    return sum * 12 / count;  // variance of a uniform number is 1/12
  };
  const uint64_t key = random_key(1, RandomPurpose::embedding_dropout);
  const uint64_t next_step = random_key(1, RandomPurpose::embedding_dropout, 1);
  const double bound = 5 / std::sqrt(100'000.0);
  EXPECT_LT(std::abs(correlation(key, 0, next_step, 0, 0)), bound);
  EXPECT_LT(std::abs(correlation(key, 0, key, 1, 0)), bound);
  EXPECT_LT(std::abs(correlation(key, 0, key, 0, 1)), bound);
  EXPECT_NEAR(correlation(key, 0, key, 0, 0), 1.0, 0.02);  // control
}

}  // namespace
}  // namespace llmtrain
