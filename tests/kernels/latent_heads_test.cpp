#include "kernels/latent_heads.hpp"

#include <gtest/gtest.h>

#include <array>

#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::stream;
using test::Values;

constexpr int64_t rows = 3, heads = 3, plain = 5, rotated = 4, value = 6, width = plain + rotated, spare = 2;
constexpr int64_t query_columns = heads * width, key_columns = heads * (plain + value);

LatentHeads shape_of(bool interleaved) { return {heads, plain, rotated, value, interleaved}; }

size_t index(int64_t row, int64_t columns, int64_t column) { return static_cast<size_t>(row * columns + column); }

/// Rows for attention; `low` has `spare` columns before those of the rotated part, q as many behind the queries.
Values assembled(const Values& q, const Values& kv, const Values& low, bool interleaved) {
  Values out;
  for (int64_t row = 0; row < rows; ++row) {
    const auto append_rotated = [&](const Values& from, int64_t columns, int64_t first) {
      for (int64_t half = 0; half < 2; ++half) {
        for (int64_t pair = 0; pair < rotated / 2; ++pair) {
          const int64_t i = interleaved ? 2 * pair + half : half * rotated / 2 + pair;
          out.push_back(from[index(row, columns, first + i)]);
        }
      }
    };
    const auto append = [&](const Values& from, int64_t columns, int64_t first, int64_t count) {
      for (int64_t i = 0; i < count; ++i) out.push_back(from[index(row, columns, first + i)]);
    };
    for (int64_t h = 0; h < heads; ++h) {
      append_rotated(q, query_columns + spare, h * width + plain);
      append(q, query_columns + spare, h * width, plain);
    }
    for (int64_t h = 0; h < heads; ++h) {
      append_rotated(low, spare + rotated, spare);
      append(kv, key_columns, h * (plain + value), plain);
    }
    for (int64_t h = 0; h < heads; ++h) {
      append(kv, key_columns, h * (plain + value) + plain, value);
      out.insert(out.end(), static_cast<size_t>(width - value), 0.0);
    }
  }
  return out;
}

TEST(LatentHeads, RowsAndSlopes) {
  const Values q = test::random_integers(rows * (query_columns + spare), 1, 20);
  const Values kv = test::random_integers(rows * key_columns, 2, 20);
  const Values low = test::random_integers(rows * (spare + rotated), 3, 20);
  const Values slopes = test::random_integers(rows * 3 * query_columns, 4, 20);
  for (const bool interleaved : {false, true}) {
    const LatentHeads shape = shape_of(interleaved);
    const Values expected = assembled(q, kv, low, interleaved);
    EXPECT_NE(expected, assembled(q, kv, low, !interleaved)) << "control: the pairs matter";
    Values inputs = q;  // the numeric gradient is that by all inputs
    inputs.insert(inputs.end(), kv.begin(), kv.end());
    inputs.insert(inputs.end(), low.begin(), low.end());
    const auto cut = [&](const Values& all) {
      const auto first = all.begin(), second = first + std::ssize(q), third = second + std::ssize(kv);
      return std::array{Values(first, second), Values(second, third), Values(third, all.end())};
    };
    const auto of_inputs = [&](const Values& all) {
      const auto parts = cut(all);
      return assembled(parts[0], parts[1], parts[2], interleaved);
    };
    Values wanted = test::numeric_gradient(of_inputs, inputs, slopes, 1.0);
    const auto gradients = cut(wanted);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      Array qkv(dtype, {rows, 3 * query_columns}, slopes);
      const Array q_in(dtype, {rows, query_columns + spare}, q), kv_in(dtype, {rows, key_columns}, kv);
      const Array low_in(dtype, {rows, spare + rotated}, low);
      latent_heads_forward(qkv, q_in, kv_in, low_in, shape, stream());
      EXPECT_EQ(qkv.values(), expected);
      qkv.set(slopes);
      const Array dq(dtype, {rows, query_columns + spare}), dkv(dtype, {rows, key_columns});
      const Array dlow(dtype, {rows, spare + rotated});
      latent_heads_backward(dq, dkv, dlow, qkv, shape, stream());
      EXPECT_EQ(dq.values(), gradients[0]);
      EXPECT_EQ(dkv.values(), gradients[1]);
      EXPECT_EQ(dlow.values(), gradients[2]);
      const Array wide(DType::f32, {rows, spare + rotated});
      latent_heads_backward(dq, dkv, wide, qkv, shape, stream());
      EXPECT_EQ(wide.values(), gradients[2]);
      LatentHeads other = shape;
      other.plain = plain + 1;
      EXPECT_THROW(latent_heads_forward(qkv, q_in, kv_in, low_in, other, stream()), Error);
      other = shape;
      other.value = width + 1;
      EXPECT_THROW(latent_heads_forward(qkv, q_in, kv_in, low_in, other, stream()), Error);
    }
  }
}

// Queries and the rotated part of keys may lie in one matrix, with other columns between them, which stay.
TEST(LatentHeads, OneMatrixHasQueriesAndKeys) {
  constexpr int64_t columns = query_columns + spare + rotated;
  const Values both = test::random_integers(rows * columns, 1, 20),
               kv = test::random_integers(rows * key_columns, 2, 20);
  Values q, low;
  for (int64_t row = 0; row < rows; ++row) {
    const auto first = both.begin() + row * columns;
    q.insert(q.end(), first, first + query_columns + spare);
    low.insert(low.end(), first + query_columns, first + columns);
  }
  const Array in(DType::f32, {rows, columns}, both), kv_in(DType::f32, {rows, key_columns}, kv);
  const Array qkv(DType::f32, {rows, 3 * query_columns});
  latent_heads_forward(qkv, in, kv_in, in, shape_of(true), stream());
  EXPECT_EQ(qkv.values(), assembled(q, kv, low, true));
  const Array din(DType::f32, {rows, columns}, Values(both.size(), 77.0)), dkv(DType::f32, {rows, key_columns});
  latent_heads_backward(din, dkv, din, qkv, shape_of(true), stream());
  const Values found = din.values();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < columns; ++c) {
      const double before = both[index(row, columns, c)], now = found[index(row, columns, c)];
      const bool of_query = c < query_columns, between = !of_query && c < query_columns + spare;
      EXPECT_EQ(now, of_query ? before : between ? 77.0 : heads * before);
    }
  }
}

// (1e8 + 1) - 1e8 is 0 in fp32; in another order it would be 1.
TEST(LatentHeads, HeadsAreAddedInOrder) {
  const LatentHeads shape{3, 1, 2, 1, false};
  Values slopes(27, 0.0);
  slopes[9] = 1e8;
  slopes[12] = 1;
  slopes[15] = -1e8;
  const Array dqkv(DType::f32, {1, 27}, slopes), dq(DType::f32, {1, 9}), dkv(DType::f32, {1, 6});
  const Array dlow(DType::f32, {1, 2});
  latent_heads_backward(dq, dkv, dlow, dqkv, shape, stream());
  EXPECT_EQ(dlow.values(), (Values{0, 0}));
  slopes[12] = 100;
  const Array other(DType::f32, {1, 27}, slopes);
  latent_heads_backward(dq, dkv, dlow, other, shape, stream());
  EXPECT_EQ(dlow.values(), (Values{96, 0})) << "control: 1e8 + 100 is 1e8 + 96 in fp32";
}

TEST(CopyColumns, CopiesAndConverts) {
  constexpr int64_t from_columns = 7, to_columns = 5, count = 3, from_first = 2, to_first = 1;
  const Values values = test::random_integers(rows * from_columns, 1, 100);
  const Values before(static_cast<size_t>(rows * to_columns), 55.0);
  for (const DType from : {DType::f32, DType::bf16, DType::f16}) {
    for (const DType to : {DType::f32, DType::bf16, DType::f16}) {
      if (!test::do_mix(from, to)) continue;
      const Array in(from, {rows, from_columns}, values), out(to, {rows, to_columns}, before);
      copy_columns(out, to_first, in, from_first, count, stream());
      Values expected = before;
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t c = 0; c < count; ++c) {
          expected[index(row, to_columns, to_first + c)] = values[index(row, from_columns, from_first + c)];
        }
      }
      EXPECT_EQ(out.values(), expected);
      EXPECT_NE(expected, before);
      EXPECT_THROW(copy_columns(out, to_first, in, from_first, to_columns, stream()), Error);
      EXPECT_THROW(copy_columns(out, to_first, in, from_columns - 1, 2, stream()), Error);
    }
  }
}

}  // namespace
}  // namespace llmtrain
