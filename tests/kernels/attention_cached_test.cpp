#include "kernels/attention_cached.hpp"

#include <gtest/gtest.h>

#include "harness/dtype_text.hpp"
#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Values;

/// Two sequences with tokens in arbitrary order; all tokens are stored, then the last ones attend.
class AttentionCached : public testing::TestWithParam<std::tuple<AttentionShape, DType>> {};

double naive_score(const Values& query, const Values& key, const AttentionShape& s) {
  double score = 0;
  for (size_t i = 0; i < query.size(); ++i) score += query[i] * key[i];
  score *= static_cast<double>(s.scale);
  const auto cap = static_cast<double>(s.softcap);
  return cap > 0 ? cap * std::tanh(score / cap) : score;
}

TEST_P(AttentionCached, AgreesWithDoubleOverTheWholeSequence) {
  const auto [s, dtype] = GetParam();
  constexpr int64_t sequences = 3, capacity = 600;
  const std::vector<int64_t> lengths = {290, 7, 600};
  const int64_t d = s.head_dim, width = (s.heads + 2 * s.kv_heads) * d;
  const Array cache(dtype, {sequences, capacity, 2 * s.kv_heads * d});
  std::vector<Values> all;  // values of every token, as stored
  for (int64_t q = 0; q < sequences; ++q) {
    const int64_t n = lengths[static_cast<size_t>(q)];
    const Array qkv(dtype, {n, width}, test::random_values(n * width, static_cast<uint64_t>(q) + 1, 2.0));
    all.push_back(qkv.values());
    Values places, owner(static_cast<size_t>(n), static_cast<double>(q));
    for (int64_t i = 0; i < n; ++i) places.push_back(static_cast<double>(i));
    const Array positions(DType::i32, {n}, places), ids(DType::i64, {n}, owner);
    Batch batch;
    batch.tokens = n;
    batch.positions = positions;
    batch.sequence_ids = ids;
    cache_keys_values(cache, qkv, batch, s, test::stream());
  }
  // The last token of each sequence, in a different order from their storage.
  const std::vector<int64_t> order = {2, 0, 1};
  Values queries, places, owner;
  for (const int64_t q : order) {
    const int64_t last = lengths[static_cast<size_t>(q)] - 1;
    const auto begin = all[static_cast<size_t>(q)].begin() + last * width;
    queries.insert(queries.end(), begin, begin + width);
    places.push_back(static_cast<double>(last));
    owner.push_back(static_cast<double>(q));
  }
  const Array qkv(dtype, {sequences, width}, queries), out(dtype, {sequences, s.heads * d}),
      lse(DType::f32, {s.heads, sequences});
  const Array positions(DType::i32, {sequences}, places), ids(DType::i64, {sequences}, owner);
  Batch batch;
  batch.tokens = sequences;
  batch.positions = positions;
  batch.sequence_ids = ids;
  attention_cached(out, lse, qkv, cache, batch, s, ProductRole::decoding, test::stream());
  const Values result = out.values();

  const double bound = dtype == DType::f32 ? 2e-6 : test::rounding(dtype);
  for (size_t r = 0; r < order.size(); ++r) {
    const Values& tokens = all[static_cast<size_t>(order[r])];
    const int64_t last = lengths[static_cast<size_t>(order[r])] - 1;
    const int64_t first = s.window > 0 ? std::max<int64_t>(0, last - s.window + 1) : 0;
    for (int64_t h = 0; h < s.heads; ++h) {
      const auto part = [&](int64_t token, int64_t offset) {
        const auto begin = tokens.begin() + token * width + offset;
        return Values(begin, begin + d);
      };
      const int64_t g = h / (s.heads / s.kv_heads);
      Values expected(static_cast<size_t>(d));
      double total = 0;
      for (int64_t j = first; j <= last; ++j) {
        const double weight = std::exp(naive_score(part(last, h * d), part(j, (s.heads + g) * d), s));
        const Values value = part(j, (s.heads + s.kv_heads + g) * d);
        for (size_t i = 0; i < expected.size(); ++i) expected[i] += weight * value[i];
        total += weight;
      }
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(result[r * static_cast<size_t>(s.heads * d) + static_cast<size_t>(h * d) + i], expected[i] / total,
                    bound * 2)
            << "row " << r << " head " << h << " element " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionCached,
    testing::Combine(testing::Values(AttentionShape{1, 1, 8, 0, 0.4F, 0}, AttentionShape{6, 2, 13, 0, 0.3F, 0},
                                     AttentionShape{4, 4, 16, 5, 0.25F, 0}, AttentionShape{4, 1, 10, 9, 0.3F, 1.5F},
                                     AttentionShape{3, 1, 140, 300, 0.1F, 0}, AttentionShape{2, 1, 300, 0, 0.05F, 0}),
                     testing::Values(DType::f32, DType::bf16, DType::f16)));

TEST(AttentionCachedErrors, TokensOutsideOfTheCacheAreRefused) {
  const AttentionShape s{1, 1, 8, 0, 1, 0};
  const Array cache(DType::f32, {1, 4, 16}), qkv(DType::f32, {1, 24}, test::random_values(24, 1));
  for (const auto& [sequence, position] : {std::pair{1, 0}, {0, 4}, {-1, 0}, {0, -1}}) {
    const Array positions(DType::i32, {1}, {static_cast<double>(position)});
    const Array ids(DType::i64, {1}, {static_cast<double>(sequence)});
    Batch batch;
    batch.tokens = 1;
    batch.positions = positions;
    batch.sequence_ids = ids;
    try {
      cache_keys_values(cache, qkv, batch, s, test::stream());
    } catch (const Error&) {
      continue;  // the host has checked it
    }
    for (const double x : cache.values()) EXPECT_EQ(x, 0) << "sequence " << sequence << ", position " << position;
    const Array out(DType::f32, {1, 8}), lse(DType::f32, {1, 1});
    attention_cached(out, lse, qkv, cache, batch, s, ProductRole::decoding, test::stream());
    for (const double x : out.values()) EXPECT_TRUE(std::isnan(x));
  }
}

}  // namespace
}  // namespace llmtrain
