#include "kernels/adapter.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/kernel_test.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::stream;
using test::Values;

size_t at(int64_t row, int64_t columns, int64_t column) { return static_cast<size_t>(row * columns + column); }

constexpr DType dtypes[] = {DType::f32, DType::bf16, DType::f16};

TEST(AdapterBlocks, AreSetAndReadInPlace) {
  constexpr int64_t rows = 37, columns = 29, r = 18, c = 11;
  const BlockPlace place{7, 13};
  const Values before = test::random_integers(rows * columns, 1, 20), block = test::random_integers(r * c, 2, 20);
  for (const DType dtype : dtypes) {
    for (const bool accumulate : {true, false}) {
      Array whole(dtype, {rows, columns}, before), part(dtype, {r, c}, block);
      set_block(whole, place, part, 0.5f, stream(), accumulate);
      Values expected = before;
      for (int64_t i = 0; i < r; ++i) {
        for (int64_t j = 0; j < c; ++j) {
          double& element = expected[at(7 + i, columns, 13 + j)];
          element = (accumulate ? element : 0) + block[at(i, c, j)] / 2;
        }
      }
      EXPECT_EQ(whole.values(), expected);
      whole.set(before);
      get_block(part, whole, place, 2, accumulate, stream());
      expected.resize(block.size());
      for (int64_t i = 0; i < r; ++i) {
        for (int64_t j = 0; j < c; ++j) {
          expected[at(i, c, j)] = (accumulate ? block[at(i, c, j)] : 0) + 2 * before[at(7 + i, columns, 13 + j)];
        }
      }
      EXPECT_EQ(part.values(), expected);
      EXPECT_THROW(get_block(part, whole, {20, 13}, 1, false, stream()), Error) << "37 rows";
    }
  }
}

TEST(AdapterDropout, UsesTheFactorsOfItsSamples) {
  constexpr int64_t rows = 11, columns = 300;
  Array ids(DType::i64, {rows}), offsets(DType::i32, {rows});
  Values sequences, places;
  for (int i = 0; i < rows; ++i) {
    sequences.push_back(i / 4);
    places.push_back(i % 4);
  }
  ids.set(sequences);
  offsets.set(places);
  Batch batch;
  batch.tokens = rows;
  batch.sequence_ids = ids;
  batch.sequence_offsets = offsets;
  const Dropout dropout{0.25f, 1234};
  const Values in = test::random_values(rows * columns, 3);
  for (const DType dtype : dtypes) {
    const Array from(dtype, {rows, columns}, in), out(dtype, {rows, columns});
    dropout_rows(out, from, batch, dropout, false, stream());
    const Values rounded = from.values();
    Values expected(in.size());
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) {
        expected[at(r, columns, c)] =
            rounded[at(r, columns, c)] *
            dropout.scale(static_cast<uint64_t>(r / 4), static_cast<uint64_t>(r % 4 * columns + c));
      }
    }
    const auto bound = [&](size_t i) { return 2 * test::rounding(dtype) * std::fabs(expected[i]); };
    test::expect_close(out.values(), expected, bound);
    dropout_rows(out, from, batch, dropout, true, stream());
    for (double& e : expected) e *= 2;
    test::expect_close(out.values(), expected, bound);
    dropout_rows(out, from, batch, {}, false, stream());
    EXPECT_EQ(out.bytes(), from.bytes());
  }
}

TEST(AdapterNorms, AreThoseOfTheSum) {
  constexpr int64_t rows = 19, columns = 301, rank = 6;
  for (const DType dtype : dtypes) {
    Values of_w = test::random_values(rows * columns, 4), of_t = test::random_values(rows * rank, 5);
    std::fill_n(of_w.begin() + 3 * columns, columns, 0.0);  // a row of zeros
    std::fill_n(of_t.begin() + 3 * rank, rank, 0.0);
    const Array w(dtype, {rows, columns}, of_w), t(dtype, {rows, rank}, of_t);
    const Array a(dtype, {rank, columns}, test::random_values(rank * columns, 6));
    const Values weights = w.values(), left = t.values(), right = a.values();
    for (const bool added : {false, true}) {
      const Array norms(DType::f32, {rows});
      row_norms(norms, w, added ? t.tensor() : Tensor(), added ? a.tensor() : Tensor(), stream());
      Values expected(rows);
      for (int64_t o = 0; o < rows; ++o) {
        double sum = 0;
        for (int64_t c = 0; c < columns; ++c) {
          double value = weights[at(o, columns, c)];
          for (int64_t k = 0; added && k < rank; ++k) value += left[at(o, rank, k)] * right[at(k, columns, c)];
          sum += value * value;
        }
        expected[static_cast<size_t>(o)] = o == 3 ? 1 : std::sqrt(sum);
      }
      test::expect_close(norms.values(), expected, [&](size_t i) { return 0x1p-20 * expected[i]; });
    }
  }
}

// Squares of the rows' halves, added, are those of whole rows; a row of zeros has norm 1.
TEST(AdapterNorms, AreThoseOfColumnsTogether) {
  constexpr int64_t rows = 9, columns = 300, half = columns / 2, rank = 3;
  Values weights = test::random_values(rows * columns, 1), low = test::random_values(rank * columns, 2);
  Values factors = test::random_values(rows * rank, 3);
  std::fill_n(weights.begin(), columns, 0.0);
  std::fill_n(factors.begin(), rank, 0.0);
  const Array w(DType::f32, {rows, columns}, weights), a(DType::f32, {rank, columns}, low);
  const Array t(DType::f32, {rows, rank}, factors);
  const Array norms(DType::f32, {rows}), sums(DType::f32, {rows}), part(DType::f32, {rows});
  row_norms(norms, w, t, a, stream());
  for (const int64_t first : {int64_t{0}, half}) {
    const Array own_w(DType::f32, {rows, half}), own_a(DType::f32, {rank, half});
    get_block(own_w, w, {0, first}, 1, false, stream());
    get_block(own_a, a, {0, first}, 1, false, stream());
    row_squares(part, own_w, t, own_a, stream());
    get_block(Tensor(sums.tensor().data, DType::f32, {1, rows}), Tensor(part.tensor().data, DType::f32, {1, rows}), {},
              1, true, stream());
  }
  EXPECT_EQ(sums.values()[0], 0);
  roots_of_squares(sums, stream());
  EXPECT_EQ(sums.values()[0], 1);
  const Values expected = norms.values();
  test::expect_close(sums.values(), expected, [&](size_t i) { return 2e-7 * expected[i]; });
}

TEST(AdapterScales, ApplyToColumns) {
  constexpr int64_t rows = 70, columns = 45;
  const Values divisors(columns, 4.0);
  for (const DType dtype : dtypes) {
    for (const DType vector : {DType::f32, dtype}) {
      const Array from(dtype, {rows, columns}, test::random_integers(rows * columns, 7, 20));
      const Array numerators(vector, {columns}, test::random_integers(columns, 8, 8));
      const Array denominators(DType::f32, {columns}, divisors);
      const Array bias(vector, {columns}, test::random_integers(columns, 9, 8)), to(dtype, {rows, columns});
      const Values x = from.values(), m = numerators.values(), b = bias.values();
      for (const bool shifted : {false, true}) {
        scale_columns(to, from, numerators, denominators, shifted ? bias.tensor() : Tensor(), stream());
        Values expected(x.size());
        for (size_t i = 0; i < x.size(); ++i) expected[i] = x[i] * m[i % columns] / 4 + (shifted ? b[i % columns] : 0);
        EXPECT_EQ(to.values(), expected);
      }
      const Array dots(DType::f32, {columns}, m);
      column_dots(dots, from, to, denominators, true, stream());
      Values expected = m;
      const Values y = to.values();
      for (size_t i = 0; i < x.size(); ++i) expected[i % columns] += x[i] * y[i] / 4;
      EXPECT_EQ(dots.values(), expected);
    }
  }
}

}  // namespace
}  // namespace llmtrain
