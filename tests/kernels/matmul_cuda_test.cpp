// tf32, padded rows and the alignment of a bias, which only exist on GPUs.

#include "kernels/kernel_test.hpp"
#include "kernels/matmul.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::Values;

constexpr int64_t size = 32;

/// Product of a constant matrix with a matrix of ones: size times the constant.
Values product(DType type, double number) {
  const Array x(type, {size, size}, Values(size * size, number)), w(type, {size, size}, Values(size * size, 1));
  const Array y(DType::f32, {size, size});
  linear_forward(y, x, w, {}, test::stream());
  return y.values();
}

TEST(Tf32, RoundsOperandsToTenBitsWhileItIsWanted) {
  const double fine = 1 + 0x1p-10 + 0x1p-12, coarse = 1 + 0x1p-10;
  const Values exact(size * size, size * fine);
  EXPECT_EQ(product(DType::f32, fine), exact);
  EXPECT_TRUE(use_tf32(true));
  const Values rounded = product(DType::f32, fine), kept = product(DType::f32, coarse);
  EXPECT_TRUE(use_tf32(false));
  EXPECT_NE(rounded, exact) << "control: 12 bits";
  test::expect_close(
      rounded, exact, [&](size_t i) { return 0x1p-10 * exact[i]; }, "to 10 bits");
  EXPECT_EQ(kept, Values(size * size, size * coarse)) << "10 bits are enough";
  EXPECT_EQ(product(DType::f32, fine), exact) << "and back";
}

TEST(Tf32, LeavesOtherTypesAlone) {
  for (const DType type : {DType::bf16, DType::f16}) {
    const Values before = product(type, 1.25);
    use_tf32(true);
    EXPECT_EQ(product(type, 1.25), before) << name_of(type);
    use_tf32(false);
    EXPECT_EQ(before, Values(size * size, size * 1.25));
  }
}

// Released versions of cuBLASLt leave out the tail of an inner dimension that they split, as they do for few rows.
TEST(InnerDimension, HasItsTail) {
  constexpr int64_t n = 4, m = 64;
  for (const int64_t k : {24, 128, 200, 333, 512, 640}) {
    for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
      SCOPED_TRACE(std::to_string(k) + " of " + std::string(name_of(type)));
      const Array x(type, {n, k}, Values(n * k, 1)), w(type, {m, k}, Values(m * k, 1));
      const Array y(DType::f32, {n, m}), dx(DType::f32, {n, m}), dw(DType::f32, {n, m});
      linear_forward(y, x, w, {}, test::stream());
      EXPECT_EQ(y.values(), Values(n * m, static_cast<double>(k)));
      const Array transposed(type, {k, m}, Values(m * k, 1));
      linear_backward_input(dx, x, transposed, false, test::stream());
      EXPECT_EQ(dx.values(), Values(n * m, static_cast<double>(k)));
      const Array columns(type, {k, n}, Values(n * k, 1));
      linear_backward_weight(dw, columns, transposed, false, test::stream());
      EXPECT_EQ(dw.values(), Values(n * m, static_cast<double>(k)));
    }
  }
}

// An algorithm selected for one bias is used for others, which may have different addresses.
TEST(FusedBias, MayLieAnywhere) {
  constexpr int64_t n = 6, m = 16, k = 8;
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    const Array x(type, {n, k}, test::random_integers(n * k, 1, 3)),
        w(type, {m, k}, test::random_integers(m * k, 2, 3));
    const Values shifts = test::random_integers(2 * m, 3, 9);
    const Array biases(type, {2 * m}, shifts), y(type, {n, m});
    linear_forward(y, x, w, {}, test::stream());
    const Values plain = y.values();
    for (const int64_t first : {0, 8, 1, 2, 0}) {
      const Tensor bias(static_cast<char*>(biases.tensor().data) + first * size_of(type), type, {m});
      linear_forward(y, x, w, bias, test::stream());
      Values expected = plain;
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += shifts[static_cast<size_t>(first) + i % m];
      EXPECT_EQ(y.values(), expected) << name_of(type) << ' ' << first;
    }
  }
}

// Rows of outputs that are longer than the number of outputs: the padding is neither written nor read.
TEST(PaddedRows, AreThoseWithoutPadding) {
  constexpr int64_t n = 5, m = 70, k = 24, padded = padded_columns(m);
  static_assert(padded == 128 && padded_columns(padded) == padded);
  const auto close_up = [](const Values& wide) {
    Values close;
    for (int64_t r = 0; r < n; ++r) close.insert(close.end(), &wide[r * padded], &wide[r * padded] + m);
    return close;
  };
  for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
    const Array x(type, {n, k}, test::random_integers(n * k, 1, 8)),
        w(type, {m, k}, test::random_integers(m * k, 2, 8));
    const Array y(DType::f32, {n, m}), wide(DType::f32, {n, padded}, Values(n * padded, -7));
    linear_forward(y, x, w, {}, test::stream());
    linear_forward(wide, x, w, {}, test::stream());
    EXPECT_EQ(close_up(wide.values()), y.values());
    for (int64_t r = 0; r < n; ++r) EXPECT_EQ(wide.values()[static_cast<size_t>(r * padded + m)], -7) << r;

    Values gradients = test::random_integers(n * padded, 3, 8);
    const Array dy(type, {n, m}, close_up(gradients));
    for (int64_t r = 0; r < n; ++r) std::fill_n(&gradients[r * padded + m], padded - m, NAN);
    const Array wide_dy(type, {n, padded}, gradients);
    const auto backward = [&](const Array& d) {
      const Array dx(type, {n, k}), dw(DType::f32, {m, k});
      linear_backward_input(dx, d, w, false, test::stream());
      linear_backward_weight(dw, d, x, false, test::stream());
      Values all = dx.values();
      const Values more = dw.values();
      all.insert(all.end(), more.begin(), more.end());
      return all;
    };
    EXPECT_EQ(backward(wide_dy), backward(dy));
    EXPECT_NE(backward(wide_dy), Values((n + m) * k, 0)) << "control";
  }
  const Array x(DType::f32, {n, k}), w(DType::f32, {m, k}), bias(DType::f32, {m});
  const Array wide(DType::f32, {n, padded}), wider(DType::f32, {n, 2 * padded});
  EXPECT_THROW(linear_forward(wide, x, w, bias, test::stream()), Error) << "with a bias";
  EXPECT_THROW(linear_forward(wider, x, w, {}, test::stream()), Error) << "another length";
}

}  // namespace
}  // namespace llmtrain
