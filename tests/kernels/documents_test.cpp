#include "kernels/documents.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Values;

const Values borders = {0, 1, 33, 40, 300, 320};  // the last segment is padding, not a document
constexpr int64_t rows = 320, documents = 4;

std::vector<double> sums_of(const Array& x, const Array& weights) {
  const DeviceBuffer memory(documents * 8);
  const Tensor sums(memory.data(), DType::f64, {documents});
  sum_documents(sums, x, weights, Array(DType::i32, {6}, borders), test::stream());
  std::vector<double> result(documents);
  copy_to_host(result.data(), sums.data, sums.bytes(), test::stream());
  test::stream().synchronize();
  return result;
}

TEST(Documents, AreSummedInAnOrderOfTheirOwn) {
  const Array x(DType::f32, {rows}, test::random_values(rows, 1)),
      weights(DType::f32, {rows}, test::random_values(rows, 2));
  const Values v = x.values(), w = weights.values();
  const std::vector<double> sums = sums_of(x, weights);
  for (size_t d = 0; d < sums.size(); ++d) {
    double expected = 0, magnitude = 0;
    for (auto i = static_cast<size_t>(borders[d]); i < static_cast<size_t>(borders[d + 1]); ++i) {
      expected += v[i] * w[i];
      magnitude += std::fabs(v[i] * w[i]);
    }
    EXPECT_NEAR(sums[d], expected, 1e-14 * magnitude) << d;
  }
  // The same rows elsewhere, beside other documents, have the same bits.
  Values moved = test::random_values(rows, 3), moved_weights = test::random_values(rows, 4);
  for (size_t i = 40; i < 300; ++i) {
    moved[i - 40] = v[i];
    moved_weights[i - 40] = w[i];
  }
  const Array shifted(DType::f32, {rows}, moved), shifted_weights(DType::f32, {rows}, moved_weights);
  const DeviceBuffer memory(8);
  const Tensor sum(memory.data(), DType::f64, {1});
  sum_documents(sum, shifted, shifted_weights, Array(DType::i32, {3}, {0, 260, 320}), test::stream());
  double alone = 0;
  copy_to_host(&alone, sum.data, sum.bytes(), test::stream());
  test::stream().synchronize();
  EXPECT_EQ(alone, sums[3]);
  EXPECT_NE(alone, sums[1]) << "the control";
}

TEST(Documents, SpreadTheirFactorsOverWeightedRows) {
  const Array weights(DType::f32, {rows}, test::random_values(rows, 5)),
      out(DType::f32, {rows}, test::random_values(rows, 6));
  const Values w = weights.values(), factors = {2, -0.5, 0, 4};
  for (const double scale : {1.0, 1024.0}) {
    spread_documents(out, Array(DType::f32, {documents}, factors), weights, Array(DType::i32, {6}, borders),
                     scale == 1 ? Array() : Array(DType::f32, {1}, {scale}), test::stream());
    Values expected(rows, 0);
    for (size_t d = 0; d < factors.size(); ++d) {
      for (auto i = static_cast<size_t>(borders[d]); i < static_cast<size_t>(borders[d + 1]); ++i) {
        expected[i] = factors[d] * scale * w[i];
      }
    }
    EXPECT_EQ(out.values(), expected);
  }
}

}  // namespace
}  // namespace llmtrain
