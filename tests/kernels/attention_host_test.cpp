// Internals of attention on the host: threads, skipped blocks, products without AVX-512, dropout tiles.

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <memory>
#include <set>

#include "kernels/attention_reference.hpp"
#include "kernels/host/attention/attention_dropout.hpp"
#include "kernels/host/product/block_product.hpp"
#include "kernels/host/product/gemm_tile.hpp"
#include "kernels/host/product/product_path.hpp"

namespace llmtrain::test {
namespace {

class Threads {
 public:
  explicit Threads(int count) : before_(omp_get_max_threads()) { omp_set_num_threads(count); }
  ~Threads() { omp_set_num_threads(before_); }

 private:
  int before_;
};

AttentionCase mixed_case(DType dtype) {
  return {.shape = {6, 2, 32, 200, 0.2f}, .lengths = {400, 70, 1, 129}, .dtype = dtype, .dropout = {0.1f, 99}};
}

TEST(AttentionThreads, BitsDoNotDependOnTheirNumber) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const AttentionCase c = mixed_case(dtype);
    const auto qkv = random_values(c.rows() * c.qkv_width(), 1, dtype, 1);
    const auto dout = random_values(c.rows() * c.out_width(), 1, dtype, 2);
    const auto run = [&](int threads, const std::vector<double>& x) {
      const Threads set(threads);
      return KernelAttention(c, x, dout).result;
    };
    const AttentionResult one = run(1, qkv);
    for (int repeat = 0; repeat < 3; ++repeat) {
      for (const int threads : {2, 3, 4, 7}) {
        const AttentionResult many = run(threads, qkv);
        EXPECT_EQ(one.out, many.out) << threads;
        EXPECT_EQ(one.lse, many.lse) << threads;
        EXPECT_EQ(one.dqkv, many.dqkv) << threads;
      }
    }
    auto other = qkv;
    other[static_cast<size_t>(c.qkv_width() * 100)] += 0.5;
    EXPECT_NE(run(2, other).dqkv, one.dqkv);
  }
}

// One head and one long document: all threads share the same dQ.
TEST(AttentionThreads, ManyThreadsOnOneHead) {
  const AttentionCase c{.shape = {1, 1, 16, 0, 0.25f}, .lengths = {1500}};
  const auto qkv = random_values(c.rows() * c.qkv_width(), 1, DType::f32, 1);
  const auto dout = random_values(c.rows() * c.out_width(), 1, DType::f32, 2);
  const auto run = [&](int threads) {
    const Threads set(threads);
    return KernelAttention(c, qkv, dout).result.dqkv;
  };
  const auto one = run(1);
  for (const int threads : {2, 4, 8}) EXPECT_EQ(run(threads), one);
}

int64_t visible_tiles(const AttentionCase& c) {
  std::set<std::tuple<size_t, int, int>> tiles;
  for (size_t s = 0; s < c.lengths.size(); ++s) {
    for (int q = 0; q < c.lengths[s]; ++q) {
      const int first = c.shape.window == 0 ? 0 : std::max(0, q - static_cast<int>(c.shape.window) + 1);
      for (int k = first; k <= q; ++k) tiles.insert({s, q / 64, k / 64});
    }
  }
  return static_cast<int64_t>(tiles.size()) * c.shape.heads;
}

TEST(AttentionBlocks, OnlyVisibleOnesAreComputed) {
  const std::vector<AttentionCase> cases = {
      {.shape = {2, 2, 16, 0, 1}, .lengths = {1024}},    {.shape = {2, 2, 16, 0, 1}, .lengths = {256, 256, 256, 256}},
      {.shape = {6, 2, 16, 100, 1}, .lengths = {1000}},  {.shape = {2, 1, 16, 64, 1}, .lengths = {700}},
      {.shape = {2, 1, 16, 65, 1}, .lengths = {700, 3}}, {.shape = {5, 1, 16, 1, 1}, .lengths = {300, 64}},
  };
  for (const AttentionCase& c : cases) {
    const auto qkv = random_values(c.rows() * c.qkv_width(), 1, DType::f32, 1);
    const auto dout = random_values(c.rows() * c.out_width(), 1, DType::f32, 2);
    const KernelAttention kernel(c, qkv, dout);
    const int64_t tiles = visible_tiles(c);
    EXPECT_EQ(kernel.forward_counters[1], tiles);
    EXPECT_EQ(kernel.backward_counters[1], tiles);
    const int64_t blocks = (c.rows() + 63) / 64;
    EXPECT_LT(tiles, c.shape.heads * blocks * blocks) << "all blocks would be more";
  }
}

class AttentionPaths : public ::testing::TestWithParam<host::ProductPath> {
 protected:
  const host::ForcedProductPath path{GetParam()};
};

TEST_P(AttentionPaths, AgreeWithDouble) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const AttentionCase c = mixed_case(dtype);
    const auto qkv = random_values(c.rows() * c.qkv_width(), 1, dtype, 1);
    const auto dout = random_values(c.rows() * c.out_width(), 1, dtype, 2);
    const NaiveAttention naive(c, qkv, dout);
    const KernelAttention kernel(c, qkv, dout);
    const double bound = dtype == DType::f32 ? 2e-6 : 5e-3;
    EXPECT_LT(mean_error(kernel.result.out, naive.result().out), bound);
    EXPECT_LT(mean_error(kernel.result.dqkv, naive.result().dqkv), bound);
  }
}

// Segments of one block have a separate path, with vectors of this processor's width or narrower ones.
TEST_P(AttentionPaths, ShortSegmentsAgreeWithDouble) {
  for (const int64_t head_dim : {16, 20, 32, 64}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const AttentionCase c{.shape = {6, 2, head_dim, 64, 0.2f}, .lengths = {64, 1, 37, 8, 63, 17}, .dtype = dtype};
      const auto qkv = random_values(c.rows() * c.qkv_width(), 1, dtype, 1);
      const auto dout = random_values(c.rows() * c.out_width(), 1, dtype, 2);
      const NaiveAttention naive(c, qkv, dout);
      const KernelAttention kernel(c, qkv, dout);
      const double bound = dtype == DType::f32 ? 2e-6 : 5e-3;
      EXPECT_LT(mean_error(kernel.result.out, naive.result().out), bound);
      EXPECT_LT(mean_error(kernel.result.lse, naive.result().lse), bound);
      EXPECT_LT(mean_error(kernel.result.dqkv, naive.result().dqkv), bound);
      auto other = qkv;
      for (size_t i = 0; i < other.size(); i += 40) other[i] += 1;
      EXPECT_GT(mean_error(KernelAttention(c, other, dout).result.dqkv, naive.result().dqkv), 2 * bound);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, AttentionPaths,
                         ::testing::Values(host::ProductPath::native, host::ProductPath::wide,
                                           host::ProductPath::plain));

void check_product(const host::BlockShape& s) {
  const auto a = random_values(int64_t{s.m} * s.k, 1, s.dtype, 1);
  const auto b = random_values(int64_t{s.k} * s.n, 1, s.dtype, 2);
  const auto c0 = random_values(int64_t{s.m} * s.n, 1, DType::f32, 3);
  std::vector<float> c(c0.begin(), c0.end());
  alignas(64) static char scratch[host::BlockProduct::scratch_bytes];
  const host::BlockProduct& product = host::BlockProduct::get(s);
  if (s.dtype == DType::f32) {
    const std::vector<float> x(a.begin(), a.end()), y(b.begin(), b.end());
    product.run(x.data(), y.data(), c.data(), scratch);
  } else {
    std::vector<bf16> x(a.size()), y(b.size());
    for (size_t i = 0; i < a.size(); ++i) x[i] = bf16(static_cast<float>(a[i]));
    for (int64_t k = 0; k < s.k; ++k) {
      for (int64_t n = 0; n < s.n; ++n) {
        y[static_cast<size_t>((k / 2 * s.n + n) * 2 + k % 2)] =
            bf16(static_cast<float>(b[static_cast<size_t>(k * s.n + n)]));
      }
    }
    product.run(x.data(), y.data(), c.data(), scratch);
  }
  host::leave_micro_kernels();
  for (int64_t m = 0; m < s.m; ++m) {
    for (int64_t n = 0; n < s.n; ++n) {
      double sum = s.accumulate ? c0[static_cast<size_t>(m * s.n + n)] : 0;
      for (int64_t k = 0; k < s.k; ++k)
        sum += a[static_cast<size_t>(m * s.k + k)] * b[static_cast<size_t>(k * s.n + n)];
      ASSERT_NEAR(c[static_cast<size_t>(m * s.n + n)], sum, 1e-5 * std::sqrt(s.k)) << s.m << ' ' << s.n << ' ' << s.k;
    }
  }
}

TEST(BlockProduct, AgreesWithNaiveLoops) {
  for (const auto forced : {host::ProductPath::native, host::ProductPath::plain}) {
    const host::ForcedProductPath path(forced);
    const bool half = host::product_kernels(DType::bf16, host::attention_block).operands == DType::bf16;
    for (const int m : {16, 64, 80}) {
      for (const int n : {16, 48, 64, 256}) {
        for (const int k : {16, 64, 80}) {
          for (const bool accumulate : {false, true}) {
            check_product({DType::f32, m, n, k, accumulate});
            if (half) check_product({DType::bf16, m, n, k, accumulate});
          }
        }
      }
    }
  }
}

TEST(DropoutTile, IsTheDocumentedMask) {
  constexpr int block = host::attention_block;
  // Arbitrary offsets, also ones that are neither consecutive nor aligned.
  std::vector<int64_t> ids(block);
  std::vector<int32_t> queries(block), keys(block);
  for (int i = 0; i < block; ++i) {
    ids[static_cast<size_t>(i)] = (int64_t{1} << 40) + i / 20;
    queries[static_cast<size_t>(i)] = 16777000 + i;
    keys[static_cast<size_t>(i)] = i < 30 ? 7 + i : 1000 + 3 * i;
  }
  for (const float p : {1e-6f, 0.1f, 0.3f, 0.5f, 0.999f}) {
    const Dropout dropout{p, 0x123456789ABCDEFull};
    std::vector<float> keep(block * block);
    host::DropoutTile(dropout, AttentionShape{})
        .fill(keep.data(), 11, {ids.data(), queries.data(), keys.data(), block, block});
    int64_t dropped = 0;
    for (int r = 0; r < block; ++r) {
      for (int c = 0; c < block; ++c) {
        const uint64_t element =
            ((uint64_t{11} << 24) + static_cast<uint64_t>(queries[static_cast<size_t>(c)])) * (uint64_t{1} << 24) +
            static_cast<uint64_t>(keys[static_cast<size_t>(r)]);
        const float expected = dropout.scale(static_cast<uint64_t>(ids[static_cast<size_t>(c)]), element);
        ASSERT_EQ(keep[static_cast<size_t>(r * block + c)], expected);
        dropped += expected == 0;
      }
    }
    const double n = block * block;
    EXPECT_NEAR(static_cast<double>(dropped), n * p, 5 * std::sqrt(n * p * (1 - p)) + 1);
  }
}

}  // namespace
}  // namespace llmtrain::test
