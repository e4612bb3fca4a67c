// Norms that are computed again, from statistics that are known.

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace llmtrain
