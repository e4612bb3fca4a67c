// Norms that are recomputed from known statistics, and by vectors of either width.

#include <gtest/gtest.h>

#include <tuple>

#include "device/processor.hpp"
#include "kernels/host/norm/norm_rows.hpp"
#include "kernels/kernel_test.hpp"
#include "kernels/norm.hpp"

namespace llmtrain {
namespace {

using test::Array;

TEST(NormAgain, TakesTheStatisticsThatThereAre) {
  constexpr int64_t rows = 19, channels = 75;
  for (const NormKind kind : {NormKind::layernorm, NormKind::rmsnorm}) {
    const Array x(DType::f32, {rows, channels}, test::random_values(rows * channels, 1, 2.0));
    const Array weight(DType::f32, {channels}, test::random_values(channels, 2));
    const Array first(DType::f32, {rows, channels}), second(DType::f32, {rows, channels});
    const Array mean(DType::f32, {rows}), rstd(DType::f32, {rows});
    const auto norm = [&](const Array& y, bool again) {
      norm_forward({kind, y, mean, rstd, x, weight, Tensor(), 1e-5f, 0, again}, test::stream());
    };
    norm(first, false);
    const auto statistics = rstd.bytes();
    norm(second, true);
    EXPECT_EQ(second.bytes(), first.bytes());
    EXPECT_EQ(rstd.bytes(), statistics);
    rstd.tensor().as<float>()[3] *= 2;
    norm(second, true);
    EXPECT_NE(second.bytes(), first.bytes()) << "they were computed again";
  }
}

#if defined(__x86_64__)
// Processors with and without AVX-512 give the same bits.
TEST(NormRows, AreTheSameByVectorsOfEitherWidth) {
  if (!processor_has(Instructions::avx512)) GTEST_SKIP() << "a processor without AVX-512";
  constexpr int64_t count = 5;
  for (const int64_t channels : {1, 13, 40, 257}) {
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
      for (const bool centered : {true, false}) {
        const Array x(DType::f32, {count, channels}, test::random_values(count * channels, 1, 2.0));
        const Array weight(type, {channels}, test::random_values(channels, 2));
        const auto run = [&](void (*rows)(const host::NormForwardRows&), float epsilon) {
          const Array y(type, {count, channels}), mean(DType::f32, {count}), rstd(DType::f32, {count});
          rows({centered, false, count, channels, x.tensor().as<float>(), y.tensor().data, type,
                centered ? mean.tensor().as<float>() : nullptr, rstd.tensor().as<float>(), weight.tensor().data,
                nullptr, type, 0, epsilon});
          return std::tuple(y.bytes(), mean.bytes(), rstd.bytes());
        };
        const auto wide = run(host::norm_rows_avx512, 1e-5f);
        EXPECT_EQ(run(host::NormRows<host::Float8>::forward, 1e-5f), wide) << channels << " " << name_of(type);
        EXPECT_NE(run(host::NormRows<host::Float8>::forward, 0.1f), wide) << "control";
      }
    }
  }
}
#endif

}  // namespace
}  // namespace llmtrain
