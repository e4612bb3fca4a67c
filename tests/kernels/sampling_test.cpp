// Tokens that a device draws are those of the definition, whatever the order of its sums: it leaves others undecided.
#include "kernels/sampling.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "core/error.hpp"
#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::stream;

constexpr float infinity = std::numeric_limits<float>::infinity();

using Row = std::vector<float>;

struct Drawn {
  std::vector<int32_t> tokens;
  std::vector<std::vector<uint32_t>> kept;
};
/// A row of the logits and random bits.
using Draws = std::vector<std::array<uint32_t, 2>>;

/// Rows have one logit more than the vocabulary, which is never drawn.
Drawn sample(const std::vector<Row>& rows, const Draws& draws, const TokenFilters& filters) {
  const auto vocabulary = static_cast<int64_t>(rows.front().size()), words = (vocabulary + 31) / 32;
  const auto count = static_cast<int64_t>(draws.size());
  std::vector<double> values;
  for (const Row& row : rows) {
    values.insert(values.end(), row.begin(), row.end());
    values.push_back(1e9);
  }
  const Array logits(DType::f32, {static_cast<int64_t>(rows.size()), vocabulary + 1}, values);
  const Array given(DType::u32, {count, 2}), tokens(DType::i32, {count}), bits(DType::u32, {count, words});
  copy_to_device(given.tensor().data, draws.data(), given.tensor().bytes(), stream());
  sample_tokens(tokens, filters.temperature > 0 ? bits.tensor() : Tensor(), logits, given, vocabulary, filters,
                stream());
  Drawn drawn;
  drawn.tokens.resize(draws.size());
  std::vector<uint32_t> all(static_cast<size_t>(count * words));
  copy_to_host(drawn.tokens.data(), tokens.tensor().data, tokens.tensor().bytes(), stream());
  copy_to_host(all.data(), bits.tensor().data, bits.tensor().bytes(), stream());
  stream().synchronize();
  for (auto row = all.begin(); row != all.end(); row += words) drawn.kept.emplace_back(row, row + words);
  // Without the kept tokens another kernel may run.
  sample_tokens(tokens, {}, logits, given, vocabulary, filters, stream());
  std::vector<int32_t> alone(draws.size());
  copy_to_host(alone.data(), tokens.tensor().data, tokens.tensor().bytes(), stream());
  stream().synchronize();
  for (size_t i = 0; i < draws.size(); ++i) {
    if (drawn.tokens[i] != undecided_token) {
      EXPECT_EQ(alone[i], drawn.tokens[i]);
    }
  }
  return drawn;
}

/// Compares with the definition. Returns the number of undecided draws.
int compare(const std::vector<Row>& rows, const Draws& draws, const TokenFilters& filters, const Drawn& drawn) {
  int undecided = 0;
  for (size_t i = 0; i < draws.size(); ++i) {
    if (drawn.tokens[i] == undecided_token) {
      if (filters.temperature > 0) {
        EXPECT_EQ(std::ranges::count(drawn.kept[i], ~0u), std::ssize(drawn.kept[i]));
      }
      ++undecided;
      continue;
    }
    const Row& row = rows[draws[i][0]];
    EXPECT_EQ(drawn.tokens[i], draw_token(row, filters, draws[i][1])) << "draw " << i;
    if (filters.temperature <= 0) continue;
    std::vector<uint32_t> kept(drawn.kept[i].size());
    mark_kept(kept, row, filters);
    EXPECT_EQ(drawn.kept[i], kept) << "draw " << i;
  }
  return undecided;
}

/// Logits like a model's; far ones, some of them excluded; many equal ones.
std::vector<Row> rows_of(int64_t vocabulary) {
  std::vector<Row> rows(3);
  for (int64_t i = 0; i < vocabulary; ++i) {
    const auto at = static_cast<uint64_t>(i);
    const double u = random_uniform(random_bits(1, 0, at)), v = random_uniform(random_bits(1, 1, at));
    rows[0].push_back(static_cast<float>(3 * std::sqrt(-2 * std::log(u)) * std::cos(6.283185307 * v)));
    rows[1].push_back(i % 3 == 1 ? -infinity : static_cast<float>(400 * (u - 0.5)));
    rows[2].push_back(static_cast<float>(std::round(8 * u) - 4));
  }
  return rows;
}

Draws draws_of(int64_t vocabulary) {
  Draws draws;
  for (const uint32_t row : {0u, 1u, 2u, 0u, 1u, 0u, 2u, 0u}) {
    draws.push_back({row, random_bits(2, static_cast<uint64_t>(vocabulary), draws.size())});
  }
  draws.push_back({0, 0});
  draws.push_back({0, ~0u});
  if (vocabulary > 60000) draws.resize(4);
  return draws;
}

const std::vector<TokenFilters>& all_filters() {
  static const std::vector<TokenFilters> all = {
      {.temperature = 0},
      {},
      {.temperature = 0.7},
      {.temperature = 30},
      {.top_k = 1},
      {.temperature = 0.8, .top_k = 40},
      {.top_k = 1 << 20},
      {.top_p = 0.9},
      {.top_p = 1e-9},
      {.temperature = 1.7, .top_p = 0.5},
      {.temperature = 0.01, .top_p = 0.95},
      {.min_p = 0.05},
      {.temperature = 0.9, .top_k = 50, .top_p = 0.95, .min_p = 0.01},
  };
  return all;
}

class SampleTokens : public testing::TestWithParam<int64_t> {};

TEST_P(SampleTokens, AreThoseOfTheDefinition) {
  const int64_t vocabulary = GetParam();
  const std::vector<Row> rows = rows_of(vocabulary);
  const Draws draws = draws_of(vocabulary);
  int undecided = 0, all = 0, moved = 0;
  for (const TokenFilters& filters : all_filters()) {
    SCOPED_TRACE(testing::Message() << filters.temperature << ", " << filters.top_k << ", " << filters.top_p << ", "
                                    << filters.min_p);
    const Drawn drawn = sample(rows, draws, filters);
    undecided += compare(rows, draws, filters, drawn);
    all += static_cast<int>(draws.size());
    for (size_t i = 0; i < draws.size(); ++i) {
      moved += drawn.tokens[i] != draw_token(rows[draws[i][0]], filters, draws[i][1] ^ 0x60000000u) ? 1 : 0;
    }
  }
  EXPECT_LE(undecided, device_memory_is_host() ? 0 : all / 4)
      << "of " << all << ": equal logits at a cut, extreme bits";
  EXPECT_TRUE(moved > 0 || vocabulary == 1) << "control: other bits draw other tokens";
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, SampleTokens, testing::Values(1, 61, 1024, 1025, 50257, 151936));

// A device that left everything to the host would be right as well.
TEST(SampleToken, OfAModelsLogitsIsDecided) {
  const std::vector<Row> rows = rows_of(32000);
  Draws draws;
  for (uint32_t i = 0; i < 24; ++i) draws.push_back({0, random_bits(4, 0, i)});
  for (const TokenFilters& filters : all_filters()) {
    EXPECT_EQ(std::ranges::count(sample(rows, draws, filters).tokens, undecided_token), 0)
        << filters.temperature << ", " << filters.top_k << ", " << filters.top_p << ", " << filters.min_p;
  }
}

TEST(SampleToken, OfLogitsThatAreNotFiniteIsUndecided) {
  for (const float bad : {infinity, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<Row> rows = rows_of(300);
    rows[1][299] = bad;
    for (const double temperature : {0.0, 1.0}) {
      const Drawn drawn = sample(rows, {{0, 5}, {1, 5}, {2, 1u << 31}}, {.temperature = temperature, .top_k = 9});
      EXPECT_NE(drawn.tokens[0], undecided_token);
      EXPECT_EQ(drawn.tokens[1], undecided_token);
      EXPECT_NE(drawn.tokens[2], undecided_token);
      EXPECT_THROW(draw_token(rows[1], {.temperature = temperature, .top_k = 9}, 5), UserError);
    }
  }
}

// Weights are 0 below e^-745, and equal or at the bound by the last bit of a sum.
TEST(SampleToken, AtABoundIsRightOrUndecided) {
  const std::vector<Row> rows = {{0, -700.5f, -720, -745.1f, -745.2f, -746, -800}, {1, 1, 1, 1, 0.5f, 0, -1}};
  Draws draws;
  for (uint32_t i = 0; i < 8; ++i) draws.push_back({i % 2, i << 29});
  for (const TokenFilters& filters : std::vector<TokenFilters>{{.top_k = 5},
                                                               {.top_k = 2},
                                                               {.top_k = 5, .min_p = 1e-310},
                                                               {.top_p = 0.5},
                                                               {.top_p = 0.25},
                                                               {.temperature = 0.5, .min_p = std::exp(-1.0)},
                                                               {.min_p = 1}}) {
    const int undecided = compare(rows, draws, filters, sample(rows, draws, filters));
    EXPECT_LE(undecided, device_memory_is_host() ? 0 : static_cast<int>(draws.size()));
  }
}

}  // namespace
}  // namespace llmtrain
