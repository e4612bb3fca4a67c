// Products of quantised matrices on each of the host's paths.

#include <array>
#include <tuple>

#include "harness/dtype_text.hpp"
#include "kernels/host/product/dequantize.hpp"
#include "kernels/host/product/product_path.hpp"
#include "kernels/matmul.hpp"
#include "kernels/quantized_array.hpp"

namespace llmtrain {
namespace {

using host::ProductPath;
using test::Array;
using test::Bytes;
using test::QuantizedArray;

struct Shape {
  std::vector<int64_t> slices;
  int64_t columns;
};
// Slices of one matrix, rows that share blocks and bytes, several k-blocks, whole tiles.
const std::vector<Shape> shapes = {{{70}, 33}, {{48, 16, 16}, 64}, {{61, 40}, 1083}, {{5}, 1500}, {{128, 64}, 256}};

const std::vector<Quantization> formats = {{QuantizedType::nf4, 64, true, 0},
                                           {QuantizedType::nf4, 256, false, 0},
                                           {QuantizedType::fp4, 64, false, 0},
                                           {QuantizedType::fp4, 32, true, 0},
                                           {QuantizedType::int8, 256, false, 0}};

/// The products with a weight, one after the other.
Bytes products(const WeightMatrix& w, int64_t rows, DType out, bool forward = true, bool backward = true) {
  const int64_t m = w.dim(0), k = w.dim(1), rank = 3;
  const DType in = w.dtype();
  Bytes all;
  const auto add = [&](const Array& result) {
    const Bytes bytes = result.bytes();
    all.insert(all.end(), bytes.begin(), bytes.end());
  };
  const Array x(in, {rows, k}, test::random_values(rows * k, 1)), dy(in, {rows, m}, test::random_values(rows * m, 2));
  const Array bias(in, {m}, test::random_values(m, 3));
  const Array left(in, {rows, rank}, test::random_values(rows * rank, 4));
  const Array right(in, {m, rank}, test::random_values(m * rank, 5)),
      a(in, {rank, k}, test::random_values(rank * k, 6));
  for (const ProductRole role : {ProductRole::training, ProductRole::prefill, ProductRole::decoding}) {
    if (!forward) break;
    const Array y(out, {rows, m});
    linear_forward(y, x, w, Tensor(), test::stream(), role);
    add(y);
    linear_forward(y, x, w, bias, test::stream(), role, {left, right});
    add(y);
  }
  if (!backward) return all;
  const Array dx(out, {rows, k}), sum(DType::f32, {rows, k}, test::random_values(rows * k, 7));
  linear_backward_input(dx, dy, w, false, test::stream(), {left, a});
  add(dx);
  linear_backward_input(sum, dy, w, true, test::stream());
  add(sum);
  return all;
}

class QuantizedProducts : public testing::TestWithParam<std::tuple<ProductPath, DType>> {
 protected:
  const host::ForcedProductPath path{std::get<0>(GetParam())};
};

TEST_P(QuantizedProducts, HaveTheBitsOfTheDequantizedMatrix) {
  const DType dtype = std::get<1>(GetParam());
  int changed = 0, number = 0;
  for (const Shape& shape : shapes) {
    // Every path meets every storage, with another shape and number of rows.
    const auto i = static_cast<size_t>(number++), turn = i + static_cast<size_t>(std::get<0>(GetParam()));
    const Quantization& format = formats[turn % formats.size()];
    const int64_t rows = std::array<int64_t, 5>{1, 4, 7, 70, 33}[(i + turn / 2) % 5];
    QuantizedArray quantized(format, shape.slices, shape.columns, static_cast<uint64_t>(number));
    const Array dense = quantized.dequantized(dtype);
    const DType out = number % 2 == 0 ? DType::f32 : dtype;
    const bool forward = format.type != QuantizedType::int8;  // whose inputs are rounded
    const Bytes expected = products(dense.tensor(), rows, out, forward);
    const std::string name = std::to_string(number) + ", " + std::to_string(rows) + " rows";
    EXPECT_TRUE(products({quantized.matrix(), dtype}, rows, out, forward) == expected) << name;
    quantized.change_a_code();
    changed += products({quantized.matrix(), dtype}, rows, out, forward) != expected ? 1 : 0;
  }
  EXPECT_EQ(changed, number) << "control: a changed code changes the products";
}

TEST_P(QuantizedProducts, OfRowsAreThoseOfTheWholeMatrix) {
  const DType dtype = std::get<1>(GetParam());
  const QuantizedArray quantized(formats[0], {40, 24, 24}, 96, 9);
  const Array dense = quantized.dequantized(dtype);
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>(40, 24), {3, 70}, {64, 24}}) {
    const WeightMatrix rows = WeightMatrix(quantized.matrix(), dtype).rows(first, count);
    EXPECT_TRUE(products(rows, 9, DType::f32) == products(dense.tensor().rows(first, count), 9, DType::f32)) << first;
  }
}

TEST_P(QuantizedProducts, DoNotDependOnThreads) {
  for (const Quantization& format : {formats[0], Quantization{QuantizedType::int8, 64, false, 0.99}}) {
    const QuantizedArray quantized(format, {200}, 256, 4), other(format, {200}, 256, 5);
    test::expect_same_bits_for_threads([&](bool changed) {
      return products({changed ? other.matrix() : quantized.matrix(), std::get<1>(GetParam())}, 40, DType::f32);
    });
  }
}

// Sums of codes are exact, so micro-kernels of bytes have the bits of the loops. Whole tiles of 128 inputs, 64 weights
// and 1,024 columns, their borders, and panels over two slices.
TEST(Int8Products, HaveTheSameBitsOnEveryPath) {
  const std::vector<std::tuple<int64_t, int64_t, DType, double>> cases = {{5, 33, DType::f32, 0},
                                                                          {130, 1100, DType::bf16, 0.99},
                                                                          {128, 1024, DType::f16, 0.99},
                                                                          {260, 2100, DType::f32, 0}};
  for (const auto& [rows, columns, dtype, threshold] : cases) {
    QuantizedArray quantized({QuantizedType::int8, 64, false, threshold}, {61, 40}, columns, 7);
    const auto forward = [&](ProductPath forced) {
      const host::ForcedProductPath path(forced);
      return products({quantized.matrix(), dtype}, rows, dtype, true, false);
    };
    const Bytes plain = forward(ProductPath::plain);
    EXPECT_TRUE(forward(ProductPath::automatic) == plain) << rows << " x " << columns;
    quantized.change_a_code();
    EXPECT_FALSE(forward(ProductPath::automatic) == plain) << "control";
  }
}

INSTANTIATE_TEST_SUITE_P(All, QuantizedProducts,
                         testing::Combine(testing::Values(ProductPath::automatic, ProductPath::native,
                                                          ProductPath::wide, ProductPath::plain),
                                          testing::Values(DType::f32, DType::bf16, DType::f16)));

// Both versions of the loops, where the processor has both, and parts of rows that begin and end anywhere.
TEST(Dequantize, PartsOfRowsAreThoseOfTheMatrix) {
  for (const Quantization& format : formats) {
    const QuantizedArray quantized(format, {5, 4}, 333, 3);
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      const Array dense = quantized.dequantized(dtype), all(dtype, {9, 333});
      dequantize(all, quantized.matrix(), test::stream());
      EXPECT_TRUE(all.bytes() == dense.bytes());
      for (const auto& [column, count] : {std::pair<int64_t, int64_t>(0, 333), {1, 100}, {63, 2}, {255, 78}}) {
        const Array part(dtype, {count}), wide(DType::f32, {count});
        host::dequantize_row(quantized.matrix(), 6, column, count, dtype, part.tensor().data);
        host::dequantize_row(quantized.matrix(), 6, column, count, dtype, wide.tensor().data, true);
        const Tensor row = dense.tensor().rows(6, 1).reshaped({333}).rows(column, count);
        EXPECT_EQ(std::memcmp(row.data, part.tensor().data, static_cast<size_t>(row.bytes())), 0) << column;
        EXPECT_EQ(wide.values(), part.values()) << column;
      }
    }
  }
}

}  // namespace
}  // namespace llmtrain
