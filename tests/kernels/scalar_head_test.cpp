#include "kernels/scalar_head.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

// Whole numbers, whose sums are exact in any order. Rows that do not count are not read: they hold NaN.
TEST(ScalarHead, ProductsOfRowsThatCount) {
  constexpr int64_t rows = 37, columns = 133;
  for (const int64_t outputs : {1, 3}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      test::Values x = test::random_integers(rows * columns, 1, 8);
      const test::Values w = test::random_integers(outputs * columns, 2, 8), b = test::random_integers(outputs, 3, 8);
      const auto all = static_cast<size_t>(outputs);
      test::Values weights(rows), dscores(rows * all), scores(rows * all), dw(all * columns), db(all);
      test::Values dx(rows * columns);
      for (size_t row = 0; row < rows; ++row) {
        weights[row] = row % 5 == 2 ? 0.5 : 0;
        for (size_t c = 0; c < columns && weights[row] == 0; ++c) {
          x[row * columns + c] = std::numeric_limits<double>::quiet_NaN();
        }
        for (size_t k = 0; k < all && weights[row] != 0; ++k) {
          const size_t e = row * all + k;
          dscores[e] = static_cast<double>((row + k) % 7) - 3.5;
          scores[e] = b[k];
          db[k] += dscores[e];
          for (size_t c = 0; c < columns; ++c) {
            scores[e] += x[row * columns + c] * w[k * columns + c];
            dw[k * columns + c] += dscores[e] * x[row * columns + c];
            dx[row * columns + c] += dscores[e] * w[k * columns + c];
          }
        }
      }
      const test::Array states(dtype, {rows, columns}, x), matrix(dtype, {outputs, columns}, w);
      const test::Array added(dtype, {outputs}, b), counts(DType::f32, {rows}, weights);
      const test::Array cotangents(DType::f32, {rows, outputs}, dscores), out(DType::f32, {rows, outputs});
      const test::Array gradient(DType::f32, {outputs, columns}, test::Values(all * columns, 7));
      const test::Array bias_gradient(DType::f32, {outputs}, test::Values(all, 7));
      scalar_head_forward(out, states, matrix, added, counts, test::stream());
      EXPECT_EQ(out.values(), scores);
      scalar_head_backward_weight(gradient, cotangents, states, false, test::stream());
      EXPECT_EQ(gradient.values(), dw);
      scalar_head_backward_bias(bias_gradient, cotangents, false, test::stream());
      EXPECT_EQ(bias_gradient.values(), db);
      scalar_head_backward_weight(gradient, cotangents, states, true, test::stream());
      scalar_head_backward_bias(bias_gradient, cotangents, true, test::stream());
      for (test::Values* values : {&dw, &db}) {
        for (double& value : *values) value *= 2;
      }
      EXPECT_EQ(gradient.values(), dw) << "accumulated";
      EXPECT_EQ(bias_gradient.values(), db) << "accumulated";
      scalar_head_backward_input(states, cotangents, matrix, false, test::stream());
      const test::Values once = states.values();
      scalar_head_backward_input(states, cotangents, matrix, true, test::stream());
      if (dtype == DType::bf16) continue;  // whose sums are rounded
      EXPECT_EQ(once, dx) << "in place";
      for (double& value : dx) value *= 2;
      EXPECT_EQ(states.values(), dx) << "added";
    }
  }
}

}  // namespace
}  // namespace llmtrain
