// Singular values and QR of matrices whose decomposition is known, and the same values for any number of threads.

#include "kernels/low_rank.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace llmtrain::test {
namespace {

using Values = std::vector<double>;
using Floats = std::vector<float>;

/// Orthonormal rows.
std::vector<Values> directions(int64_t count, int64_t length, std::mt19937& random) {
  std::normal_distribution<double> normal;
  std::vector<Values> rows;
  while (std::ssize(rows) < count) {
    Values x(static_cast<size_t>(length));
    for (double& value : x) value = normal(random);
    for (int pass = 0; pass < 2; ++pass) {
      for (const Values& q : rows) {
        double sum = 0;
        for (size_t i = 0; i < x.size(); ++i) sum += q[i] * x[i];
        for (size_t i = 0; i < x.size(); ++i) x[i] -= sum * q[i];
      }
    }
    double square = 0;
    for (const double value : x) square += value * value;
    for (double& value : x) value /= std::sqrt(square);
    rows.push_back(std::move(x));
  }
  return rows;
}

Floats matrix_of(int64_t rows, int64_t columns, const Values& values, uint32_t seed) {
  std::mt19937 random(seed);
  const auto left = directions(std::ssize(values), rows, random),
             right = directions(std::ssize(values), columns, random);
  Floats matrix(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < matrix.size(); ++i) {
    double sum = 0;
    const size_t row = i / static_cast<size_t>(columns), column = i % static_cast<size_t>(columns);
    for (size_t k = 0; k < values.size(); ++k) sum += values[k] * left[k][row] * right[k][column];
    matrix[i] = static_cast<float>(sum);
  }
  return matrix;
}

/// Largest difference between a matrix and the sum of the low-rank part.
double distance(const Floats& matrix, const LowRankPart& part, int64_t rows, int64_t columns) {
  double largest = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      double sum = 0;
      for (size_t k = 0; k < part.values.size(); ++k) {
        sum += part.values[k] * part.left[k * static_cast<size_t>(rows) + static_cast<size_t>(r)] *
               part.right[k * static_cast<size_t>(columns) + static_cast<size_t>(c)];
      }
      largest = std::max(largest, std::abs(sum - matrix[static_cast<size_t>(r * columns + c)]));
    }
  }
  return largest;
}

TEST(LargestSingularValues, AreThoseOfTheMatrix) {
  for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{{40, 24}, {24, 40}, {8, 8}, {300, 220}}) {
    SCOPED_TRACE(rows);
    Values values = {9, 5, 5, 5, 2, 1, 0.5, 0.25};  // three are equal
    const Floats matrix = matrix_of(rows, columns, values, 3);
    const LowRankPart all = largest_singular_values(matrix.data(), rows, columns, 8, 1);
    for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(all.values[i], values[i], 1e-5) << i;
    EXPECT_LT(distance(matrix, all, rows, columns), 1e-6);
    const LowRankPart four = largest_singular_values(matrix.data(), rows, columns, 4, 3);
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(four.values[i], values[i], 1e-5) << i;
    EXPECT_GT(distance(matrix, four, rows, columns), 1e-3) << "control: a part only";
  }
}

// A slow fall of values, where the subspace is restarted.
TEST(LargestSingularValues, OfALargeMatrixHaveSmallResiduals) {
  constexpr int64_t rows = 500, columns = 420, rank = 6;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  Floats matrix(rows * columns);
  for (float& value : matrix) value = normal(random);
  const LowRankPart found = largest_singular_values(matrix.data(), rows, columns, rank, 1);
  for (int64_t k = 0; k < rank; ++k) {
    double worst = 0;
    for (int64_t c = 0; c < columns; ++c) {  // W^T u = s v
      double sum = 0;
      for (int64_t r = 0; r < rows; ++r) {
        sum += matrix[static_cast<size_t>(r * columns + c)] * found.left[static_cast<size_t>(k * rows + r)];
      }
      worst = std::max(worst, std::abs(sum - found.values[static_cast<size_t>(k)] *
                                                 found.right[static_cast<size_t>(k * columns + c)]));
    }
    EXPECT_LT(worst, 1e-5 * found.values[0]);
    if (k > 0) {
      EXPECT_GE(found.values[static_cast<size_t>(k - 1)], found.values[static_cast<size_t>(k)]);
    }
  }
  const LowRankPart again = largest_singular_values(matrix.data(), rows, columns, rank, 5);
  EXPECT_EQ(again.values, found.values);
  EXPECT_EQ(again.left, found.left);
  EXPECT_EQ(again.right, found.right);
}

TEST(LargestSingularValues, OfZerosAreZeros) {
  const Floats matrix(12 * 9);
  const LowRankPart found = largest_singular_values(matrix.data(), 12, 9, 3, 1);
  EXPECT_EQ(found.values, Values(3));
}

TEST(FirstOfQr, HasTheFirstColumns) {
  constexpr int64_t rows = 30, columns = 50;
  const Floats matrix = matrix_of(rows, columns, {4, 3, 2, 1}, 7);
  EXPECT_LT(distance(matrix, first_of_qr(matrix.data(), rows, columns, 4, 2), rows, columns), 1e-6);  // of its rank
  const LowRankPart two = first_of_qr(matrix.data(), rows, columns, 2, 1);
  double square = 0;
  for (int64_t r = 0; r < rows; ++r)
    square += matrix[static_cast<size_t>(r * columns)] * matrix[static_cast<size_t>(r * columns)];
  EXPECT_NEAR(two.right[0], std::sqrt(square), 1e-6);
  EXPECT_NEAR(two.right[columns], 0, 1e-6) << "below the diagonal";
}

}  // namespace
}  // namespace llmtrain::test
