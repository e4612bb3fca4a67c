#include "kernels/logprob.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "core/error.hpp"
#include "harness/errors.hpp"
#include "kernels/logprob_rows.hpp"

namespace llmtrain::test {
namespace {

class Logprob : public testing::TestWithParam<int> {};

TEST_P(Logprob, StatisticsAgreeWithDouble) {
  const Rows& x = shape(GetParam());
  const Naive naive(x);
  Kernel kernel(x);
  kernel.forward(x.vocabulary);
  const Values logp = kernel.logp.values(), lse = kernel.lse.values(), entropy = kernel.entropy.values();
  const Values uniform = kernel.uniform.values();
  const auto argmax = kernel.argmax_values();
  for (size_t r = 0; r < logp.size(); ++r) {
    EXPECT_NEAR(logp[r], naive.logp[r], 2e-7 * (1 + std::abs(naive.logp[r]))) << r;
    EXPECT_NEAR(lse[r], naive.lse[r], 2e-7 * (1 + std::abs(naive.lse[r]))) << r;
    EXPECT_NEAR(entropy[r], naive.entropy[r], 1e-6 * (1 + std::abs(naive.entropy[r]))) << r;
    EXPECT_NEAR(uniform[r], naive.uniform[r], 2e-7 * (1 + std::abs(naive.uniform[r]))) << r;
    EXPECT_EQ(argmax[r], naive.argmax[r]) << r;
    if (x.targets[r] == ignore_target) {
      EXPECT_EQ(logp[r], 0);
    }
  }
}

TEST_P(Logprob, GradientsAgreeWithDouble) {
  const Rows& x = shape(GetParam());
  const Naive naive(x);
  Kernel kernel(x);
  kernel.forward(x.vocabulary);
  DeviceTensor separate(DType::f32, {x.rows, x.columns}), half(DType::bf16, {x.rows, x.columns});
  kernel.backward(separate.tensor, kernel.cotangents(), x.vocabulary);
  kernel.backward(half.tensor, kernel.cotangents(), x.vocabulary);
  kernel.backward(kernel.logits.tensor, kernel.cotangents(), x.vocabulary);
  const Values d = separate.values(), in_place = kernel.logits.values(), rounded = half.values();
  EXPECT_EQ(d, in_place);
  double largest = 0;
  for (size_t i = 0; i < d.size(); ++i) {
    largest = larger(largest, std::abs(naive.dlogits[i]));
    // fp32: lse and log p are rounded at their own size, 10 to 100
    ASSERT_NEAR(d[i], naive.dlogits[i], 2e-5 * std::abs(naive.dlogits[i]) + 2e-6) << i;
    ASSERT_EQ(rounded[i], static_cast<float>(bf16(static_cast<float>(d[i])))) << i;
    if (static_cast<int64_t>(i) % x.columns >= x.vocabulary) {
      ASSERT_EQ(d[i], 0) << "padding";
    }
  }
  if (x.vocabulary > 1) {
    EXPECT_GT(largest, 0.1) << "the bound would be empty";
  }
}

TEST_P(Logprob, OneKernelHasTheBitsOfTwo) {
  const Rows& x = shape(GetParam());
  for (const DType dtype : {DType::f32, DType::bf16}) {  // fp32 in place
    for (const bool all : {false, true}) {
      const auto run = [&](bool one, float softcap) {
        Kernel kernel(x);
        const DeviceTensor separate(dtype, {x.rows, x.columns});
        const Tensor d = dtype == DType::f32 ? kernel.logits.tensor : separate.tensor;
        const TokenStatistics plain{kernel.logp.tensor, kernel.lse.tensor, {}, {}};
        const TokenStatistics statistics = all ? kernel.statistics() : plain;
        const TokenCotangents c = all ? kernel.cotangents() : TokenCotangents{kernel.dlogp.tensor, {}, {}};
        if (one) {
          logprob_forward_backward(d, kernel.logits.tensor, kernel.targets.tensor, statistics, c, x.vocabulary, softcap,
                                   stream());
        } else {
          logprob_forward(statistics, kernel.logits.tensor, kernel.targets.tensor, x.vocabulary, stream());
          logprob_backward(d, kernel.logits.tensor, kernel.targets.tensor, statistics, c, x.vocabulary, softcap,
                           stream());
        }
        Values results = dtype == DType::f32 ? kernel.logits.values() : separate.values();
        for (const DeviceTensor* t : {&kernel.logp, &kernel.lse}) {
          const Values values = t->values();
          results.insert(results.end(), values.begin(), values.end());
        }
        return results;
      };
      const Values expected = run(false, 50);
      EXPECT_EQ(run(true, 50), expected);
      if (all && x.vocabulary > 1) {
        EXPECT_NE(run(true, 0), expected) << "control: without the cap";
      }
    }
  }
}

// The naive gradient itself, compared with differences.
TEST_P(Logprob, NaiveGradientIsTheSlope) {
  Rows x = shape(GetParam());
  const int trials = x.vocabulary > 10000 ? 2 : 20;
  const Naive here(x);
  std::mt19937_64 generator(3);
  for (int trial = 0; trial < trials; ++trial) {
    const size_t row = generator() % static_cast<size_t>(x.rows);
    const size_t i = row * static_cast<size_t>(x.columns) + generator() % static_cast<size_t>(x.vocabulary);
    const double z = x.logits[i];
    x.logits[i] = z + 1e-5;
    const double above = Naive(x).objective;
    x.logits[i] = z - 1e-5;
    const double below = Naive(x).objective;
    x.logits[i] = z;
    EXPECT_NEAR((above - below) / 2e-5, here.dlogits[i], 1e-6);
  }
}

/// Tokens of a row that sampling could draw: two of three, the target and the most probable one among them.
std::vector<uint32_t> kept_words(const Rows& x, const std::function<bool(int64_t row, int64_t token)>& is_kept) {
  const int64_t width = (x.vocabulary + 31) / 32;
  std::vector<uint32_t> words(static_cast<size_t>(x.rows * width));
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t t = 0; t < x.vocabulary; ++t) {
      if (is_kept(r, t)) words[static_cast<size_t>(r * width + t / 32)] |= 1U << t % 32;
    }
  }
  return words;
}

TEST_P(Logprob, TemperedStatisticsAreThoseOfTheKeptTokens) {
  constexpr float temperature = 0.7f;
  const Rows& x = shape(GetParam());
  const auto is_kept = [&](int64_t r, int64_t t) { return (t + r) % 3 != 0 || t == x.targets[static_cast<size_t>(r)]; };
  Rows left = x;  // the same in double, excluded logits far below the others
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t t = 0; t < x.vocabulary; ++t) {
      double& logit = left.logits[static_cast<size_t>(r * x.columns + t)];
      logit = is_kept(r, t) ? logit / double{temperature} : -1e9;
    }
  }
  const Naive naive(left);
  if (x.vocabulary == 1) return;  // row 0 keeps its target only
  DeviceTensor kept(DType::u32, {x.rows, (x.vocabulary + 31) / 32});
  kept.set(kept_words(x, is_kept).data());
  Kernel kernel(x);
  temper_logits(kernel.logits.tensor, temperature, kept.tensor, x.vocabulary, stream());
  kernel.forward(x.vocabulary);
  DeviceTensor half(DType::bf16, {x.rows, x.columns}), separate(DType::f32, {x.rows, x.columns});
  for (DeviceTensor* d : {&half, &separate}) {
    kernel.backward(d->tensor, kernel.cotangents(), x.vocabulary);
    temper_gradient(d->tensor, temperature, kept.tensor, x.vocabulary, stream());
  }
  const Values logp = kernel.logp.values(), lse = kernel.lse.values(), entropy = kernel.entropy.values();
  for (size_t r = 0; r < logp.size(); ++r) {
    EXPECT_NEAR(logp[r], naive.logp[r], 3e-7 * (1 + std::abs(naive.logp[r]))) << r;
    EXPECT_NEAR(lse[r], naive.lse[r], 3e-7 * (1 + std::abs(naive.lse[r]))) << r;
    EXPECT_NEAR(entropy[r], naive.entropy[r], 2e-6 * (1 + std::abs(naive.entropy[r]))) << r;
  }
  const Values d = separate.values(), rounded = half.values();
  for (int64_t r = 0; r < x.rows; ++r) {
    for (int64_t t = 0; t < x.columns; ++t) {
      const auto i = static_cast<size_t>(r * x.columns + t);
      if (t >= x.vocabulary || !is_kept(r, t)) {
        ASSERT_EQ(d[i], 0) << "row " << r << ", token " << t;
        ASSERT_EQ(rounded[i], 0) << "row " << r << ", token " << t;
      } else {
        const double expected = naive.dlogits[i] / double{temperature};
        const double log_sum = naive.lse[static_cast<size_t>(r)];  // whose rounding is relative
        ASSERT_NEAR(d[i], expected, 1e-6 * (1 + std::abs(expected)) * (3 + std::abs(log_sum)))
            << "row " << r << ", token " << t;
        ASSERT_NEAR(rounded[i], expected, 0x1p-7 * std::abs(expected) + 1e-5) << "row " << r << ", token " << t;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, Logprob, testing::Range(0, 7));

TEST(LogprobParts, EmptyOnesAreLeftOut) {
  const Rows x(6, 100, 112);
  Kernel all(x), some(x);
  all.forward(x.vocabulary);
  logprob_forward({some.logp.tensor, some.lse.tensor, {}, {}}, some.logits.tensor, some.targets.tensor, x.vocabulary,
                  stream());
  EXPECT_EQ(all.logp.values(), some.logp.values());
  EXPECT_EQ(all.lse.values(), some.lse.values());

  DeviceTensor only_logp(DType::f32, {x.rows, x.columns}), zeros(DType::f32, {x.rows, x.columns});
  all.backward(only_logp.tensor, {all.dlogp.tensor, {}, {}}, x.vocabulary);
  const Values zero(static_cast<size_t>(x.rows), 0.0);
  all.dlse.set(zero);
  all.dentropy.set(zero);
  all.duniform.set(zero);
  all.dsquared.set(zero);
  all.backward(zeros.tensor, all.cotangents(), x.vocabulary);
  EXPECT_EQ(only_logp.values(), zeros.values());
  // Only rows with a target get a gradient from logp.
  const Values d = only_logp.values();
  for (int64_t r = 0; r < x.rows; ++r) {
    const bool any =
        std::any_of(d.begin() + r * x.columns, d.begin() + (r + 1) * x.columns, [](double v) { return v != 0; });
    EXPECT_EQ(any, x.targets[static_cast<size_t>(r)] != ignore_target);
  }
}

// Compared with differences of capped logits in double; in place, as in the head, and in bf16.
TEST(LogprobSoftcap, GradientsReachBehindTheCap) {
  constexpr float cap = 4;
  for (const Rows& uncapped : {Rows(7, 50, 64, 6), Rows(5, 301, 304, 3)}) {
    Kernel kernel(uncapped);
    softcap_logits(kernel.logits.tensor, cap, stream());
    const Values capped = kernel.logits.values();
    for (size_t i = 0; i < capped.size(); ++i) {
      ASSERT_NEAR(capped[i], cap * std::tanh(uncapped.logits[i] / cap), 1e-6);
    }
    kernel.forward(uncapped.vocabulary);
    DeviceTensor separate(DType::f32, {uncapped.rows, uncapped.columns});
    DeviceTensor free(DType::f32, {uncapped.rows, uncapped.columns});
    kernel.backward(separate.tensor, kernel.cotangents(), uncapped.vocabulary, cap);
    kernel.backward(free.tensor, kernel.cotangents(), uncapped.vocabulary);
    kernel.backward(kernel.logits.tensor, kernel.cotangents(), uncapped.vocabulary, cap);
    const Values d = separate.values(), without = free.values();
    EXPECT_EQ(d, kernel.logits.values()) << "in place";

    const auto objective = [&](const Rows& x) {
      Rows y = x;
      for (double& z : y.logits) z = cap * std::tanh(z / cap);
      return Naive(y).objective;
    };
    Rows x = uncapped;
    double control = 0;
    std::mt19937_64 generator(3);
    for (int trial = 0; trial < 60; ++trial) {
      const auto row = static_cast<int64_t>(generator() % static_cast<uint64_t>(x.rows));
      const bool target = trial % 2 == 0 && x.targets[static_cast<size_t>(row)] != ignore_target;
      const auto column = target ? x.targets[static_cast<size_t>(row)]
                                 : static_cast<int64_t>(generator() % static_cast<uint64_t>(x.vocabulary));
      const auto i = static_cast<size_t>(row * x.columns + column);
      const double z = x.logits[i];
      x.logits[i] = z + 1e-5;
      const double above = objective(x);
      x.logits[i] = z - 1e-5;
      const double slope = (above - objective(x)) / 2e-5;
      x.logits[i] = z;
      EXPECT_NEAR(d[i], slope, 1e-5 * std::abs(slope) + 2e-6);
      control = larger(control, std::abs(without[i] - slope));
    }
    EXPECT_GT(control, 1e-2) << "without the slope of the cap";
  }
}

TEST(LogprobNumerics, ExtremeLogits) {
  Rows x(4, 40, 40);
  for (double& z : x.logits) z *= 1e4;
  for (size_t c = 0; c < 40; ++c) x.logits[c] = -3e38;  // row 0: all equal
  x.logits[40 + 7] = 3e38;                              // row 1: one far above
  x.targets = {3, 7, 5, 6};
  Kernel kernel(x);
  kernel.forward(x.vocabulary);
  EXPECT_NEAR(kernel.logp.values()[0], 0, 1e32) << "lse of -3e38 is rounded at its size";
  EXPECT_NEAR(kernel.entropy.values()[0], std::log(40.0), 1e-5);
  EXPECT_EQ(kernel.logp.values()[1], 0);
  EXPECT_NEAR(kernel.entropy.values()[1], 0, 1e-6);
  EXPECT_EQ(kernel.argmax_values()[1], 7);
  const Naive naive(x);
  for (size_t r = 2; r < 4; ++r) EXPECT_NEAR(kernel.logp.values()[r], naive.logp[r], 1e-6 * std::abs(naive.logp[r]));
  DeviceTensor d(DType::f32, {4, 40});
  TokenCotangents cotangents = kernel.cotangents();
  cotangents.lse_squared = {};  // 2 lse is beyond fp32
  kernel.backward(d.tensor, cotangents, x.vocabulary);
  for (const double g : d.values()) EXPECT_TRUE(std::isfinite(g));
}

TEST(LogprobNumerics, WellPredictedTargetKeepsItsGradient) {
  Rows x(1, 100, 100);
  std::fill(x.logits.begin(), x.logits.end(), 0.0);
  x.logits[42] = 16;  // 1 - p is 1.1e-5
  x.targets = {42};
  x.dlogp = {1};
  Kernel kernel(x);
  kernel.forward(x.vocabulary);
  DeviceTensor d(DType::f32, {1, 100});
  kernel.backward(d.tensor, {kernel.dlogp.tensor, {}, {}}, x.vocabulary);
  const double expected = 1 - 1 / (1 + 99 * std::exp(-16.0));
  EXPECT_NEAR(d.values()[42], expected, 0.1 * expected);  // lse itself is rounded by 1e-6
}

TEST(LogprobNumerics, NanSpreadsWithinItsRow) {
  const Rows x(2, 200, 200);
  Kernel kernel(x);
  Values logits = x.logits;
  logits[33] = std::numeric_limits<double>::quiet_NaN();
  kernel.logits.set(logits);
  kernel.forward(x.vocabulary);
  EXPECT_TRUE(std::isnan(kernel.lse.values()[0]));
  EXPECT_TRUE(std::isnan(kernel.logp.values()[0]));
  EXPECT_TRUE(std::isfinite(kernel.lse.values()[1]));
}

TEST(LogprobNumerics, LowestIndexAmongEqualsWins) {
  Rows x(1, 500, 512);
  std::fill(x.logits.begin(), x.logits.end(), 1.0);
  x.logits[470] = x.logits[99] = x.logits[300] = 2;
  Kernel kernel(x);
  kernel.forward(x.vocabulary);
  EXPECT_EQ(kernel.argmax_values()[0], 99);
}

// A row's bits depend only on the row: not on its position in the block, nor on other rows.
TEST(LogprobBits, RowsAreIndependent) {
  const Rows x(9, 5000, 5056);
  Kernel all(x);
  all.forward(x.vocabulary);
  const Values lse = all.lse.values(), entropy = all.entropy.values();
  for (int64_t r = 0; r < x.rows; ++r) {
    Rows one(1, 5000, 5056);
    one.logits.assign(x.logits.begin() + r * 5056, x.logits.begin() + (r + 1) * 5056);
    Kernel alone(one);
    alone.forward(x.vocabulary);
    EXPECT_EQ(alone.lse.values()[0], lse[static_cast<size_t>(r)]);
    EXPECT_EQ(alone.entropy.values()[0], entropy[static_cast<size_t>(r)]);
  }
  EXPECT_NE(lse[0], lse[1]);
}

TEST(LogprobErrors, WrongInputsAreRefused) {
  Rows x(4, 100, 112);
  Kernel kernel(x);
  EXPECT_THROW(kernel.forward(113), Error);
  EXPECT_THROW(kernel.forward(0), Error);
  EXPECT_NO_THROW(kernel.forward(100));
  DeviceTensor bf(DType::bf16, {4, 112});
  const Tensor overlay(kernel.logits.tensor.data, DType::bf16, {4, 112});
  EXPECT_THROW(kernel.backward(overlay, kernel.cotangents(), 100), Error);
  EXPECT_THROW(kernel.backward(bf.tensor.rows(0, 3), kernel.cotangents(), 100), Error);
  EXPECT_THROW(logprob_backward(bf.tensor, kernel.logits.tensor, kernel.targets.tensor, {}, kernel.cotangents(), 100, 0,
                                stream()),
               Error);
  for (const int32_t outside : {100, -1, -101, INT32_MAX, INT32_MIN}) {
    x.targets[2] = outside;
    kernel.targets.set(x.targets.data());
    try {
      kernel.forward(100);
    } catch (const Error&) {
      continue;  // the host has checked it
    }
    const Values logp = kernel.logp.values();
    for (size_t r = 0; r < logp.size(); ++r) EXPECT_EQ(std::isnan(logp[r]), r == 2) << outside;
  }
}

TEST(MeanLogits, AreThoseOfTheVocabulary) {
  const Rows x(5, 37, 40);
  const Kernel kernel(x);
  mean_logits(kernel.logp.tensor, kernel.logits.tensor, x.vocabulary, stream());
  const Values means = kernel.logp.values();
  for (int64_t r = 0; r < x.rows; ++r) {
    double sum = 0;
    for (int64_t c = 0; c < x.vocabulary; ++c) sum += x.logits[static_cast<size_t>(r * x.columns + c)];
    EXPECT_NEAR(means[static_cast<size_t>(r)], sum / static_cast<double>(x.vocabulary), 1e-6);
  }
}

}  // namespace
}  // namespace llmtrain::test
