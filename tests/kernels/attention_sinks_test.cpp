#include "kernels/attention_sinks.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/attention.hpp"
#include "kernels/attention_cached.hpp"
#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::stream;
using test::Values;

constexpr int64_t rows = 70, heads = 3, width = 10;

/// Output of all heads with sinks.
Values with_sinks(const Values& out, const Values& lse, const Values& sinks) {
  Values result = out;
  for (int64_t n = 0; n < rows; ++n) {
    for (int64_t h = 0; h < heads; ++h) {
      const double all = std::exp(lse[static_cast<size_t>(h * rows + n)]);
      const double share = all / (all + std::exp(sinks[static_cast<size_t>(h)]));
      for (int64_t d = 0; d < width; ++d) result[static_cast<size_t>((n * heads + h) * width + d)] *= share;
    }
  }
  return result;
}

class AttentionSinks : public testing::TestWithParam<DType> {};

TEST_P(AttentionSinks, ForwardAndBackwardAgreeWithDouble) {
  const DType dtype = GetParam();
  const Array out(dtype, {rows, heads * width}, test::random_values(rows * heads * width, 1));
  const Array lse(DType::f32, {heads, rows}, test::random_values(heads * rows, 2, 3));
  const Array sinks(dtype, {heads}, test::random_values(heads, 3, 2));
  const Values plain = out.values(), logs = lse.values(), logits = sinks.values();
  add_attention_sinks(out, lse, sinks, stream());
  const Values expected = with_sinks(plain, logs, logits);
  const double unit = 1e-6 + test::rounding(dtype);
  test::expect_close(
      out.values(), expected, [&](size_t i) { return unit * std::fabs(expected[i]) + 1e-7; }, "out");
  Values sums = logs;
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] = std::log(std::exp(logs[i]) + std::exp(logits[i / static_cast<size_t>(rows)]));
  }
  test::expect_close(
      lse.values(), sums, [](size_t) { return 1e-6; }, "lse");

  const Array dout(dtype, {rows, heads * width}, test::random_values(rows * heads * width, 4));
  const Values slope =
      test::numeric_gradient([&](const Values& s) { return with_sinks(plain, logs, s); }, logits, dout.values());
  const auto bound = [&](size_t i) { return (1e-5 + 4 * test::rounding(dtype)) * (1 + std::fabs(slope[i])); };
  const Array dsinks(DType::f32, {heads});
  const auto add = [&](int64_t first, int64_t count, bool accumulate) {
    attention_sinks_backward(
        {dsinks, dout.tensor().rows(first, count), out.tensor().rows(first, count), lse, first, sinks, accumulate},
        stream());
  };
  add(0, rows, false);
  test::expect_close(dsinks.values(), slope, bound, "dsinks");
  add(0, 40, false);
  EXPECT_GT(std::fabs(dsinks.values()[0] - slope[0]), bound(0)) << "control: some rows are missing";
  add(40, rows - 40, true);
  test::expect_close(dsinks.values(), slope, bound, "of two blocks of rows");
}

INSTANTIATE_TEST_SUITE_P(All, AttentionSinks, testing::Values(DType::f32, DType::bf16, DType::f16));

TEST(AttentionSinks, OfAnySizeAreFinite) {
  const Array out(DType::f32, {1, 2}, {1, 1}), lse(DType::f32, {2, 1}, {-300, 300});
  const Array sinks(DType::f32, {2}, {300, -300});
  add_attention_sinks(out, lse, sinks, stream());
  EXPECT_EQ(out.values(), (Values{0, 1}));
  EXPECT_EQ(lse.values(), (Values{300, 300}));
}

// The sinks need the sums of queries over cached keys, which are those over the keys of the batch.
TEST(AttentionSinks, CachedKeysGiveTheSameSums) {
  constexpr int64_t d = 8, key_heads = 2, query_heads = 4, columns = (query_heads + 2 * key_heads) * d;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t window : {0, 5}) {
      for (const ProductRole role : {ProductRole::prefill, ProductRole::decoding}) {
        const AttentionShape shape{query_heads, key_heads, d, window, 0.4f, 0};
        const Array qkv(dtype, {rows, columns}, test::random_values(rows * columns, 5));
        const Array out(dtype, {rows, query_heads * d}), lse(DType::f32, {query_heads, rows});
        const Array segments(DType::i32, {2}, {0, rows}), ids(DType::i64, {rows});
        Values places;
        for (int64_t n = 0; n < rows; ++n) places.push_back(static_cast<double>(n));
        const Array positions(DType::i32, {rows}, places);
        Batch batch;
        batch.tokens = rows;
        batch.segments = segments;
        batch.segment_count = 1;
        batch.longest_segment = rows;
        batch.positions = positions;
        batch.sequence_ids = ids;
        batch.sequence_offsets = positions;
        const int64_t bytes = attention_workspace_bytes(shape, rows);
        const Array workspace(DType::f32, {bytes / 4 + 1});
        attention_forward(out, lse, qkv, batch, shape, {}, Tensor(workspace.tensor().data, DType::u8, {bytes}),
                          stream());
        const Array cache(dtype, {1, rows, 2 * key_heads * d}), again(dtype, {rows, query_heads * d}),
            sums(DType::f32, {query_heads, rows});
        cache_keys_values(cache, qkv, batch, shape, stream());
        attention_cached(again, sums, qkv, cache, batch, shape, role, stream());
        const Values expected = lse.values();
        test::expect_close(
            sums.values(), expected, [](size_t) { return 1e-5; }, "sums");
        EXPECT_GT(std::fabs(sums.values()[0] - expected[1]), 1e-5) << "control: another row";
        if (device_memory_is_host()) {
          EXPECT_EQ(sums.bytes(), lse.bytes());
        }
      }
    }
  }
}

}  // namespace
}  // namespace llmtrain
