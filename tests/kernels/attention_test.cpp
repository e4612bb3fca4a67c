#include "kernels/attention.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.hpp"
#include "kernels/attention_reference.hpp"

namespace llmtrain::test {
namespace {

AttentionShape shape(int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window = 0) {
  return {heads, kv_heads, head_dim, window, static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)))};
}

AttentionShape capped(AttentionShape shape, float softcap) {
  shape.softcap = softcap;
  return shape;
}

Dropout dropout(float probability) { return {probability, random_key(7, RandomPurpose::attention_dropout, 3, 5)}; }

struct Named {
  const char* name;
  AttentionCase c;
};
void PrintTo(const Named& n, std::ostream* os) { *os << n.name; }

const Named cases[] = {
    {"one_block", {.shape = shape(2, 2, 16), .lengths = {64}}},
    {"several_blocks", {.shape = shape(3, 3, 64), .lengths = {320}}},
    {"ragged_length", {.shape = shape(2, 2, 32), .lengths = {203}}},
    {"one_token", {.shape = shape(2, 2, 32), .lengths = {1}}},
    {"documents", {.shape = shape(2, 2, 32), .lengths = {70, 1, 64, 130, 5, 1, 63}}},
    {"grouped_queries", {.shape = shape(6, 2, 32), .lengths = {150, 40}}},
    {"two_queries_per_group", {.shape = shape(4, 2, 16), .lengths = {300}}},
    {"one_key_head", {.shape = shape(9, 1, 16), .lengths = {140, 9}}},
    {"window", {.shape = shape(2, 2, 32, 50), .lengths = {333, 20}}},
    {"window_of_one", {.shape = shape(2, 1, 16, 1), .lengths = {130}}},
    {"window_of_a_block", {.shape = shape(2, 1, 16, 64), .lengths = {260}}},
    {"wide_window", {.shape = shape(2, 2, 16, 1000), .lengths = {130}}},
    {"head_dim_10", {.shape = shape(3, 1, 10), .lengths = {100, 30}}},
    {"head_dim_1", {.shape = shape(2, 2, 1), .lengths = {90}}},
    {"head_dim_80", {.shape = shape(2, 1, 80), .lengths = {129}}},
    {"head_dim_128", {.shape = shape(2, 1, 128), .lengths = {200}}},
    {"head_dim_256", {.shape = shape(2, 2, 256), .lengths = {97}}},
    {"wide_heads_of_documents", {.shape = capped(shape(4, 2, 256, 50), 1.5f), .lengths = {70, 1, 64, 101, 33}}},
    {"wide_heads_dropout", {.shape = shape(2, 1, 200), .lengths = {67, 3}, .dropout = dropout(0.3f)}},
    {"head_dim_129", {.shape = shape(3, 1, 129, 64), .lengths = {130}}},
    {"head_dim_257", {.shape = shape(1, 1, 257), .lengths = {40}}},
    {"dropout", {.shape = shape(4, 2, 32), .lengths = {150, 67, 3}, .dropout = dropout(0.3f)}},
    {"softcap", {.shape = capped(shape(4, 2, 32), 1.5f), .lengths = {150, 67, 3}}},
    {"softcap_in_a_window", {.shape = capped(shape(2, 1, 10, 40), 0.7f), .lengths = {150}}},
    {"wide_softcap", {.shape = capped(shape(2, 2, 16), 50), .lengths = {130}}},
    {"softcap_dropout", {.shape = capped(shape(2, 2, 16, 70), 1), .lengths = {140}, .dropout = dropout(0.2f)}},
    {"dropout_in_a_window", {.shape = shape(2, 2, 10, 40), .lengths = {150}, .dropout = dropout(0.1f)}},
};

class Attention : public testing::TestWithParam<Named> {
 protected:
  /// Errors as (largest / largest value, rms / rms).
  static void expect_close(const AttentionCase& c, double largest, double mean) {
    const auto qkv = random_values(c.rows() * c.qkv_width(), c.magnitude, c.dtype, c.seed);
    const auto dout = random_values(c.rows() * c.out_width(), 1, c.dtype, c.seed + 1);
    const NaiveAttention naive(c, qkv, dout);
    const KernelAttention kernel(c, qkv, dout);
    EXPECT_LT(max_error(kernel.result.out, naive.result().out), largest);
    EXPECT_LT(mean_error(kernel.result.out, naive.result().out), mean);
    const double of_lse = c.dtype == DType::f32 ? 1e-6 : 4e-6;  // tensor cores truncate as they add products
    EXPECT_LT(max_error(kernel.result.lse, naive.result().lse), of_lse);
    EXPECT_LT(max_error(kernel.result.dqkv, naive.result().dqkv), largest);
    EXPECT_LT(mean_error(kernel.result.dqkv, naive.result().dqkv), mean);
  }
};

TEST_P(Attention, AgreesWithNaiveLoopsInFp32) { expect_close(GetParam().c, 2e-6, 2e-6); }

// Bounds for the rounding of operands, probabilities and results to 8 bits; the inputs are rounded before, for both.
TEST_P(Attention, AgreesWithNaiveLoopsInBf16) {
  AttentionCase c = GetParam().c;
  c.dtype = DType::bf16;
  expect_close(c, 1e-2, 6e-3);
}

// Bounds for 11 bits.
TEST_P(Attention, AgreesWithNaiveLoopsInFp16) {
  AttentionCase c = GetParam().c;
  c.dtype = DType::f16;
  expect_close(c, 1e-2 / 8, 6e-3 / 8);
}

// The naive gradient itself, compared with differences of the naive objective.
TEST_P(Attention, NaiveGradientIsTheSlope) {
  const AttentionCase& c = GetParam().c;
  auto qkv = random_values(c.rows() * c.qkv_width(), 1, DType::f32, 5);
  const auto dout = random_values(c.rows() * c.out_width(), 1, DType::f32, 6);
  const auto gradient = NaiveAttention(c, qkv, dout).result().dqkv;
  std::mt19937_64 generator(4);
  for (int trial = 0; trial < 4; ++trial) {
    const size_t i = generator() % qkv.size();
    const double x = qkv[i];
    const double step = 1e-5;
    qkv[i] = x + step;
    const double above = NaiveAttention(c, qkv, dout).objective();
    qkv[i] = x - step;
    const double below = NaiveAttention(c, qkv, dout).objective();
    qkv[i] = x;
    EXPECT_NEAR(gradient[i], (above - below) / (2 * step), 1e-7 * (1 + std::abs(gradient[i])));
  }
}

// The kernels' own slope along a random direction: forward and backward pass use the same masks.
TEST_P(Attention, BackwardIsTheSlopeOfForward) {
  const AttentionCase& c = GetParam().c;
  const auto qkv = random_values(c.rows() * c.qkv_width(), 1, DType::f32, 5);
  const auto dout = random_values(c.rows() * c.out_width(), 1, DType::f32, 6);
  const auto direction = random_values(c.rows() * c.qkv_width(), 1, DType::f32, 7);
  const KernelAttention here(c, qkv, dout);
  const double step = 1e-2;
  const auto objective = [&](double t) {
    auto moved = qkv;
    for (size_t i = 0; i < moved.size(); ++i) moved[i] += t * direction[i];
    const auto out = KernelAttention(c, moved, dout).result.out;
    double sum = 0;
    for (size_t i = 0; i < out.size(); ++i) sum += out[i] * dout[i];
    return sum;
  };
  // Fourth-order differences: the truncation error is of the order of step^4.
  const double slope =
      (8 * (objective(step) - objective(-step)) - (objective(2 * step) - objective(-2 * step))) / (12 * step);
  double expected = 0;
  double size = 0;
  for (size_t i = 0; i < qkv.size(); ++i) {
    expected += here.result.dqkv[i] * direction[i];
    size += here.result.dqkv[i] * here.result.dqkv[i];
  }
  EXPECT_NEAR(slope, expected, 1e-3 * std::sqrt(size));
}

INSTANTIATE_TEST_SUITE_P(Cases, Attention, testing::ValuesIn(cases),
                         [](const auto& named) { return std::string(named.param.name); });

TEST(AttentionNumerics, LargeScoresNeitherOverflowNorVanish) {
  for (const double magnitude : {30.0, 1e4, 1e8}) {
    AttentionCase c{.shape = shape(2, 1, 32), .lengths = {150}, .magnitude = magnitude};
    const auto qkv = random_values(c.rows() * c.qkv_width(), magnitude, DType::f32, 11);
    const auto dout = random_values(c.rows() * c.out_width(), 1, DType::f32, 12);
    const NaiveAttention naive(c, qkv, dout);
    const KernelAttention kernel(c, qkv, dout);
    // Scores of size s are rounded by s * 2^-24, which is the error of their exponentials.
    const double score = magnitude * magnitude * 4;
    EXPECT_LT(max_error(kernel.result.out, naive.result().out), 2e-6 + score * 4e-7) << magnitude;
    for (const double x : kernel.result.lse) ASSERT_TRUE(std::isfinite(x));
    for (const double x : kernel.result.dqkv) ASSERT_TRUE(std::isfinite(x));
    EXPECT_LT(max_error(kernel.result.lse, naive.result().lse), 1e-6);
  }
}

TEST(AttentionNumerics, ASoftcapIsSeen) {
  AttentionCase c{.shape = shape(2, 1, 32), .lengths = {150}};
  const auto qkv = random_values(c.rows() * c.qkv_width(), 1, DType::f32, 11);
  const auto dout = random_values(c.rows() * c.out_width(), 1, DType::f32, 12);
  const KernelAttention free(c, qkv, dout);
  c.shape.softcap = 5;
  const KernelAttention kernel(c, qkv, dout);
  EXPECT_GT(max_error(kernel.result.out, free.result.out), 1e-3);
  EXPECT_GT(max_error(kernel.result.dqkv, free.result.dqkv), 1e-3);
}

TEST(AttentionNumerics, EqualScoresGiveTheMean) {
  AttentionCase c{.shape = shape(1, 1, 16), .lengths = {100}};
  std::vector<double> qkv(static_cast<size_t>(c.rows() * c.qkv_width()), 0.0);
  for (int64_t t = 0; t < 100; ++t) qkv[static_cast<size_t>(t * 48 + 32)] = static_cast<double>(t);
  const KernelAttention kernel(c, qkv, std::vector<double>(1600, 1.0));
  for (int64_t t = 0; t < 100; ++t) {
    EXPECT_NEAR(kernel.result.out[static_cast<size_t>(t * 16)], static_cast<double>(t) / 2, 1e-5);
    EXPECT_NEAR(kernel.result.lse[static_cast<size_t>(t)], std::log(static_cast<double>(t + 1)), 1e-6);
  }
}

// The same documents separately and in one batch, bit for bit; a change in one document changes only that one.
TEST(AttentionBits, PackedDocumentsEqualSeparateOnes) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    AttentionCase c{
        .shape = shape(4, 2, 32, 90), .lengths = {129, 1, 200, 64}, .dtype = dtype, .dropout = dropout(0.2f)};
    auto qkv = random_values(c.rows() * c.qkv_width(), 1, dtype, 21);
    const auto dout = random_values(c.rows() * c.out_width(), 1, dtype, 22);
    const KernelAttention packed(c, qkv, dout);
    int64_t row = 0;
    for (size_t s = 0; s < c.lengths.size(); ++s) {
      AttentionCase alone = c;
      alone.lengths = {c.lengths[s]};
      const auto cut = [&](const std::vector<double>& v, int64_t width) {
        return std::vector<double>(v.begin() + row * width, v.begin() + (row + c.lengths[s]) * width);
      };
      const KernelAttention one(alone, cut(qkv, c.qkv_width()), cut(dout, c.out_width()), static_cast<int>(s));
      EXPECT_EQ(one.result.out, cut(packed.result.out, c.out_width()));
      EXPECT_EQ(one.result.dqkv, cut(packed.result.dqkv, c.qkv_width()));
      const KernelAttention renamed(alone, cut(qkv, c.qkv_width()), cut(dout, c.out_width()), static_cast<int>(s) + 9);
      if (c.lengths[s] > 1) {
        EXPECT_NE(renamed.result.out, one.result.out) << "other masks, other values";
      }
      row += c.lengths[s];
    }
    qkv[static_cast<size_t>(140 * c.qkv_width() + 3)] += 1;
    const KernelAttention changed(c, qkv, dout);
    const auto first = static_cast<std::ptrdiff_t>(130 * c.out_width());
    const auto last = static_cast<std::ptrdiff_t>(330 * c.out_width());
    const auto same = [&](std::ptrdiff_t a, std::ptrdiff_t b) {
      return std::equal(packed.result.out.begin() + a, packed.result.out.begin() + b, changed.result.out.begin() + a);
    };
    EXPECT_TRUE(same(0, first));
    EXPECT_FALSE(same(first, last));
    EXPECT_TRUE(same(last, std::ssize(packed.result.out)));
  }
}

TEST(AttentionBits, LaterTokensDoNotReachEarlierOnes) {
  const AttentionCase c{.shape = shape(2, 2, 32), .lengths = {200}};
  auto qkv = random_values(c.rows() * c.qkv_width(), 1, DType::f32, 31);
  const auto dout = random_values(c.rows() * c.out_width(), 1, DType::f32, 32);
  const KernelAttention before(c, qkv, dout);
  for (int64_t e = 150 * c.qkv_width(); e < c.rows() * c.qkv_width(); ++e) qkv[static_cast<size_t>(e)] *= -3;
  const KernelAttention after(c, qkv, dout);
  const auto border = before.result.out.begin() + 150 * c.out_width();
  EXPECT_TRUE(std::equal(before.result.out.begin(), border, after.result.out.begin()));
  EXPECT_FALSE(std::equal(border, before.result.out.end(), after.result.out.begin() + 150 * c.out_width()));
}

// With all scores equal and values of one, an output is the share of kept keys over (1 - p).
TEST(AttentionDropout, KeepsTheMean) {
  for (const float probability : {0.1f, 0.5f}) {
    AttentionCase c{.shape = shape(4, 4, 16), .lengths = {256, 256}, .dropout = dropout(probability)};
    std::vector<double> qkv(static_cast<size_t>(c.rows() * c.qkv_width()), 0.0);
    for (int64_t t = 0; t < c.rows(); ++t) {
      for (int64_t e = 128; e < 192; ++e) qkv[static_cast<size_t>(t * c.qkv_width() + e)] = 1;
    }
    const KernelAttention kernel(c, qkv, std::vector<double>(static_cast<size_t>(c.rows() * c.out_width()), 1.0));
    double mean = 0;
    double variance = 0;  // of the mean: p / (1 - p) / keys per independent (row, head)
    int64_t identical = 0;
    for (int64_t t = 0; t < c.rows(); ++t) {
      for (int64_t h = 0; h < 4; ++h) {
        mean += kernel.result.out[static_cast<size_t>(t * 64 + h * 16)] / static_cast<double>(c.rows() * 4);
        variance += probability / (1.0 - probability) / static_cast<double>(t % 256 + 1);
      }
      identical +=
          kernel.result.out[static_cast<size_t>(t * 64)] == kernel.result.out[static_cast<size_t>(t * 64 + 16)];
    }
    const double deviation = std::sqrt(variance) / static_cast<double>(c.rows() * 4);
    EXPECT_NEAR(mean, 1, 4 * deviation);
    EXPECT_LT(identical, c.rows() / 2) << "heads have masks of their own";
    c.dropout.key += 1;
    const KernelAttention other(c, qkv, std::vector<double>(static_cast<size_t>(c.rows() * c.out_width()), 1.0));
    EXPECT_NE(other.result.out, kernel.result.out);
  }
}

TEST(AttentionErrors, WrongShapesAreRefused) {
  DeviceTensor qkv(DType::f32, {8, 48}), out(DType::f32, {8, 16}), lse(DType::f32, {1, 8}), segments(DType::i32, {2});
  const int32_t rows[2] = {0, 8};
  segments.set(rows);
  Batch batch;
  batch.tokens = 8;
  batch.segment_count = 1;
  batch.segments = segments.tensor;
  const AttentionShape good = shape(1, 1, 16);
  DeviceTensor workspace(DType::u8, {attention_workspace_bytes(good, 8)});
  const auto run = [&](const AttentionShape& s, const Tensor& y, const Dropout& drop, const Tensor& space) {
    attention_forward(y, lse.tensor, qkv.tensor, batch, s, drop, space, stream());
  };
  EXPECT_NO_THROW(run(good, out.tensor, {}, workspace.tensor));
  EXPECT_THROW(run(shape(2, 1, 16), out.tensor, {}, workspace.tensor), Error);
  EXPECT_THROW(run(shape(3, 2, 16), out.tensor, {}, workspace.tensor), Error);
  EXPECT_THROW(run(good, out.tensor.rows(0, 4), {}, workspace.tensor), Error);
  EXPECT_THROW(run(good, out.tensor, Dropout{1.0f, 0}, workspace.tensor), Error);
  EXPECT_THROW(run(good, out.tensor, {}, workspace.tensor.rows(0, 4096)), Error);
  batch.tokens = 7;
  EXPECT_THROW(run(good, out.tensor, {}, workspace.tensor), Error);
}

TEST(AttentionMemory, WorkspaceGrowsLinearlyWithTheRows) {
  const AttentionShape s = shape(12, 12, 64);
  const int64_t a = attention_workspace_bytes(s, 1024);
  const int64_t b = attention_workspace_bytes(s, 2048);
  const int64_t c = attention_workspace_bytes(s, 4096);
  EXPECT_EQ(c - b, 2 * (b - a));
  EXPECT_LT(c - b, int64_t{2048} * 12 * (64 + 4) * 4);
}

}  // namespace
}  // namespace llmtrain::test
