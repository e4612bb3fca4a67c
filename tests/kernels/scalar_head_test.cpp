#include "kernels/scalar_head.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

// Whole numbers, whose sums are exact in any order. Rows that do not count are not read: they hold NaN.
TEST(ScalarHead, ProductsOfRowsThatCount) {
  constexpr int64_t rows = 37, columns = 133;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    test::Values x = test::random_integers(rows * columns, 1, 8);
    const test::Values w = test::random_integers(columns, 2, 8);
    test::Values weights(rows), dscores(rows), scores(rows), dw(columns), dx(rows * columns);
    for (int64_t i = 0; i < rows; ++i) {
      const auto row = static_cast<size_t>(i);
      weights[row] = i % 5 == 2 ? 0.5 : 0;
      dscores[row] = i % 5 == 2 ? static_cast<double>(i % 7) - 3.5 : 0;
      for (int64_t c = 0; c < columns; ++c) {
        const auto e = static_cast<size_t>(i * columns + c), column = static_cast<size_t>(c);
        if (weights[row] == 0) x[e] = std::numeric_limits<double>::quiet_NaN();
        if (weights[row] == 0) continue;
        scores[row] += x[e] * w[column];
        dw[column] += dscores[row] * x[e];
        dx[e] = dscores[row] * w[column];
      }
    }
    const test::Array states(dtype, {rows, columns}, x), vector(dtype, {1, columns}, w);
    const test::Array counts(DType::f32, {rows}, weights), cotangents(DType::f32, {rows}, dscores);
    const test::Array out(DType::f32, {rows}), gradient(DType::f32, {1, columns}, test::Values(columns, 7));
    scalar_head_forward(out, states, vector, counts, test::stream());
    EXPECT_EQ(out.values(), scores);
    scalar_head_backward_weight(gradient, cotangents, states, false, test::stream());
    EXPECT_EQ(gradient.values(), dw);
    scalar_head_backward_weight(gradient, cotangents, states, true, test::stream());
    for (double& value : dw) value *= 2;
    EXPECT_EQ(gradient.values(), dw) << "accumulated";
    scalar_head_backward_input(states, cotangents, vector, false, test::stream());
    EXPECT_EQ(states.values(), dx) << "in place";
    scalar_head_backward_input(states, cotangents, vector, true, test::stream());
    for (double& value : dx) value *= 2;
    EXPECT_EQ(states.values(), dx) << "added";
  }
}

}  // namespace
}  // namespace llmtrain
