// The order of sums over rows: 32 rows in fp32, 32 such sums in double, then those in order.

#include <gtest/gtest.h>

#include <vector>

#include "harness/harness.hpp"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/kernel_test.hpp"

namespace llmtrain::cuda {
namespace {

struct Element {
  const float* x;
  int64_t columns;
  void operator()(int64_t row, int64_t column, float* sums) const {
    sums[0] += x[row * columns + column];
    sums[1] -= 2 * x[row * columns + column];  // exact, with or without a fused multiply-add
  }
};

TEST(ColumnSums, HaveOneOrderForAShape) {
  constexpr int64_t columns = 3;
  for (const int64_t rows : {int64_t{1}, int64_t{31}, int64_t{33}, int64_t{1024}, int64_t{1025}, int64_t{4999}}) {
    std::vector<float> x(static_cast<size_t>(rows * columns));
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(std::exp(20 * random_uniform(random_bits(5, 1, i))));
    }
    // Between two terms that cancel each other, a double has few bits for the rest, so that its order shows.
    for (int64_t c = 0; rows > 1024 && c < columns; ++c) {
      x[static_cast<size_t>(rows / 3 * columns + c)] = 0x1p80f;
      x[static_cast<size_t>(rows * 2 / 3 * columns + c)] = -0x1p80f;
    }
    const test::Array in(DType::f32, {rows, columns}, test::Values(x.begin(), x.end()));
    const test::Array sums(DType::f32, {3, columns}, {1, 1, 1, 2, 2, 2, 7, 7, 7});
    auto* const to = sums.tensor().as<float>();
    const Element element{in.tensor().as<float>(), columns};
    column_sums(rows, columns, {to, to + columns}, true, test::stream(), element);
    column_sums(rows, columns, {nullptr, to + 2 * columns}, false, test::stream(), element);
    const test::Values all = sums.values();
    const double *first = all.data(), *second = first + columns, *only = second + columns;
    bool plain_differs = false;
    for (int64_t c = 0; c < columns; ++c) {
      double total[2] = {}, group[2] = {};
      float block[2] = {}, plain = 0;
      for (int64_t row = 0; row < rows; ++row) {
        Element{x.data(), columns}(row, c, block);
        plain += x[static_cast<size_t>(row * columns + c)];
        const bool block_ends = row % 32 == 31 || row + 1 == rows, group_ends = row % 1024 == 1023 || row + 1 == rows;
        for (int r = 0; r < 2; ++r) {
          if (block_ends) group[r] += block[r], block[r] = 0;
          if (group_ends) total[r] += group[r], group[r] = 0;
        }
      }
      EXPECT_EQ(first[c], static_cast<float>(1 + total[0])) << rows;
      EXPECT_EQ(second[c], static_cast<float>(2 + total[1])) << rows;
      plain_differs |= first[c] != static_cast<double>(1 + plain);
    }
    EXPECT_TRUE(plain_differs || rows < 1000) << rows;
    for (int64_t c = 0; c < columns; ++c) EXPECT_NEAR(only[c], second[c], 2.5 + 1e-6 * std::abs(second[c]));
  }
}

}  // namespace
}  // namespace llmtrain::cuda
