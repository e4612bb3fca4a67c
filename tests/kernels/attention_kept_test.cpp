// A cache that keeps some of the keys keeps those of the definitions (H2O, Zhang et al. 2023; StreamingLLM, Xiao et al.
// 2024), head by head.

#include "kernels/attention_kept.hpp"

#include <algorithm>
#include <array>
#include <numeric>

#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::stream;
using test::Values;

/// One layer of attention with grouped keys, step by step, as the definition says.
class KeptKeysTest : public testing::TestWithParam<int64_t> {
 protected:
  static constexpr int64_t texts = 2, heads = 4, groups = 2, width = 5, places = 8, prompt = 11, steps = 9;
  static constexpr int64_t row = (heads + 2 * groups) * width;
  static constexpr std::array<int32_t, 2> budget = {6, 3};  // of which three are the last ones

  KeptKeysTest() {
    shape.heads = heads;
    shape.kv_heads = groups;
    shape.head_dim = width;
    shape.scale = 0.7F;
    for (double& x : all) x = double{static_cast<float>(x)};  // as the device has it
  }
  const double* query(int64_t t, int64_t h) const { return all.data() + t * row + h * width; }
  const double* key(int64_t t, int64_t g) const { return all.data() + t * row + (heads + g) * width; }

  /// Probabilities of the positions `kept` for the query heads of g at position t, summed.
  std::vector<double> weigh(int64_t t, int64_t g, const std::vector<int64_t>& kept) const {
    std::vector<double> sums(kept.size());
    for (int64_t h = g * heads / groups; h < (g + 1) * heads / groups; ++h) {
      std::vector<double> p(kept.size());
      for (size_t j = 0; j < kept.size(); ++j) {
        const double product = std::inner_product(query(t, h), query(t, h) + width, key(kept[j], g), 0.0);
        p[j] = std::exp(double{shape.scale} * product);
      }
      const double total = std::accumulate(p.begin(), p.end(), 0.0);
      for (size_t j = 0; j < kept.size(); ++j) sums[j] += p[j] / total;
    }
    return sums;
  }
  /// Positions that are kept of key head g after each new token, sorted.
  std::vector<std::vector<int64_t>> expected(int64_t g, int64_t sinks) const {
    std::vector<double> sums(static_cast<size_t>(prompt + steps));
    std::vector<int64_t> kept;
    std::vector<std::vector<int64_t>> after;
    const auto shrink = [&](int64_t t) {
      while (std::ssize(kept) > budget[0]) {
        const auto worth = [&](int64_t p) {
          if (p > t - budget[1]) return 1e9;
          return sinks < 0 ? sums[static_cast<size_t>(p)] : p < sinks ? 1e8 : static_cast<double>(p);
        };
        kept.erase(std::ranges::min_element(kept, {}, worth));
      }
    };
    for (int64_t t = 0; t < prompt + steps; ++t) {
      kept.push_back(t);
      const std::vector<double> more = weigh(t, g, kept);
      for (size_t j = 0; j < kept.size(); ++j) sums[static_cast<size_t>(kept[j])] += more[j];
      if (t >= prompt - 1) shrink(t);
      if (t >= prompt - 1) after.push_back(kept);
    }
    return after;
  }

  Array rows(int64_t first, int64_t count) const {
    return {DType::f32, {count, row}, Values(all.begin() + first * row, all.begin() + (first + count) * row)};
  }
  Values prompt_lse() const {
    Values lse;
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t t = 0; t < prompt; ++t) {
        double total = 0;
        for (int64_t j = 0; j <= t; ++j) {
          const double* k = key(j, h / (heads / groups));
          total += std::exp(double{shape.scale} * std::inner_product(query(t, h), query(t, h) + width, k, 0.0));
        }
        lse.push_back(std::log(total));
      }
    }
    return lse;
  }

  AttentionShape shape;
  Values all = test::random_values((prompt + steps) * row, 5, 2);
};

TEST_P(KeptKeysTest, AreThoseOfTheDefinition) {
  const Array cache(DType::f32, {texts, places, 2 * groups * width}), sums(DType::f32, {texts, groups, places});
  const Array positions(DType::i32, {texts, groups, places}), holes(DType::i32, {texts, groups});
  const Array counts(DType::i32, {1}), budgets(DType::i32, {texts, 2}, {0, 0, double{budget[0]}, double{budget[1]}});
  const KeptKeys kept{cache, sums, positions, holes, budgets, GetParam()};
  Batch batch;
  const Array segments(DType::i32, {2}, {0, double{prompt}}), ids(DType::i64, {prompt}, Values(prompt, 1));
  batch.tokens = prompt;
  batch.segment_count = 1;
  batch.segments = segments;
  batch.sequence_ids = ids;
  keep_prompt_keys(kept, rows(0, prompt), Array(DType::f32, {heads, prompt}, prompt_lse()), batch, shape, stream());
  const auto found = [&](int64_t g) {
    const Values at = positions.values();
    const auto hole = static_cast<int64_t>(holes.values()[static_cast<size_t>(groups + g)]);
    std::vector<int64_t> kept_positions;
    for (int64_t place = 0; place <= budget[0]; ++place) {
      if (place == hole) continue;
      kept_positions.push_back(static_cast<int64_t>(at[static_cast<size_t>((groups + g) * places + place)]));
    }
    std::ranges::sort(kept_positions);
    return kept_positions;
  };
  std::vector<std::vector<std::vector<int64_t>>> wanted;
  for (int64_t g = 0; g < groups; ++g) wanted.push_back(expected(g, GetParam()));
  for (size_t g = 0; g < groups; ++g) EXPECT_EQ(found(static_cast<int64_t>(g)), wanted[g][0]) << "after the prompt";
  batch.tokens = 1;
  for (int64_t t = prompt; t < prompt + steps; ++t) {
    const Array position(DType::i32, {1}, {static_cast<double>(t)}), qkv = rows(t, 1);
    batch.positions = position;
    store_kept_keys(kept, counts, qkv, batch, shape, stream());
    EXPECT_EQ(counts.values()[0], budget[0]);
    weigh_kept_keys(kept, counts, qkv, batch, shape, stream());
    for (size_t g = 0; g < groups; ++g) {
      EXPECT_EQ(found(static_cast<int64_t>(g)), wanted[g][static_cast<size_t>(t - prompt + 1)]) << "head " << g;
    }
  }
  if (GetParam() < 0) {
    EXPECT_NE(wanted[0], wanted[1]) << "heads differ";
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, KeptKeysTest, testing::Values(-1, 2));

}  // namespace
}  // namespace llmtrain
