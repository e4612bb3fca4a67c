// Quantised matrices on every device.

#include <algorithm>
#include <cmath>
#include <tuple>

#include "kernels/adapter.hpp"
#include "kernels/matmul.hpp"
#include "kernels/quantized_array.hpp"
#include "kernels/workspace.hpp"

namespace llmtrain {
namespace {

using test::Array;
using test::QuantizedArray;

TEST(QuantizedMatrix, IsTheDequantizedOneInEveryKernel) {
  const std::vector<Quantization> formats = {
      {QuantizedType::nf4, 64, true, 0}, {QuantizedType::fp4, 128, false, 0}, {QuantizedType::int8, 64, false, 0}};
  for (const Quantization& format : formats) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      QuantizedArray quantized(format, {24, 8}, 72, 5);
      const Array dense = quantized.dequantized(dtype), all(dtype, {32, 72});
      dequantize(all, quantized.matrix(), test::stream());
      EXPECT_TRUE(all.bytes() == dense.bytes());
      const Array x(dtype, {6, 72}, test::random_values(6 * 72, 1)), dy(dtype, {6, 8}, test::random_values(6 * 8, 2));
      const auto results = [&](const WeightMatrix& w) {
        const Array y(DType::f32, {6, 32}), dx(DType::f32, {6, 72}), norms(DType::f32, {32});
        if (format.type != QuantizedType::int8) linear_forward(y, x, w, Tensor(), test::stream());
        linear_backward_input(dx, dy, w.rows(24, 8), false, test::stream());
        row_norms(norms, w, Tensor(), Tensor(), test::stream());
        return std::vector<test::Bytes>{y.bytes(), dx.bytes(), norms.bytes()};
      };
      const auto expected = results(dense.tensor());
      EXPECT_TRUE(results({quantized.matrix(), dtype}) == expected);
      quantized.change_a_code();
      EXPECT_FALSE(results({quantized.matrix(), dtype}) == expected) << "control";
    }
  }
}

// Packs of elements and chunks end anywhere: matrices of odd widths, parts that begin anywhere, records of odd lengths.
TEST(QuantizedMatrix, PartsOfAnyWidthAreThoseOfTheWhole) {
  const std::vector<Quantization> formats = {{QuantizedType::nf4, 256, true, 0},
                                             {QuantizedType::nf4, 32, false, 0},
                                             {QuantizedType::fp4, 128, true, 0},
                                             {QuantizedType::int8, 64, false, 0}};
  for (const Quantization& format : formats) {
    for (const int64_t columns : {3, 75, 128, 300}) {
      const QuantizedArray quantized(format, {9, 7}, columns, 5);
      const Array dense = quantized.dequantized(DType::bf16), part(DType::bf16, {10, columns});
      dequantize(part, quantized.matrix().part(5, 10), test::stream());
      const test::Values all = dense.values(), values = part.values();
      const auto equals = [&](int64_t row) {
        return std::equal(values.begin(), values.end(), all.begin() + row * columns);
      };
      EXPECT_TRUE(equals(5)) << columns;
      EXPECT_FALSE(equals(6)) << columns << ": control";
    }
  }
}

/// A product whose rows do not depend on each other: `count` rows from `first` on, with outputs of `w`.
Array decoded(ProductRole role, const Tensor& x, const WeightMatrix& w, const Tensor& bias, const LowRank& added) {
  Array y(DType::f32, {x.dim(0), w.dim(0)});
  linear_forward(y, x, w, bias, test::stream(), role, added);
  return y;
}

// Whole tiles and their borders on every device; on a GPU the library multiplies bytes only for multiples of four
// outputs, and the bits are those of the plain loop that other parts take. The values are those of
// tests/hf/int8_product_test.cpp.
TEST(QuantizedMatrix, ElementsOfProductsDependOnTheirRowsAlone) {
  constexpr int64_t rows = 67, columns = 1100, rank = 3;
  const std::vector<Quantization> formats = {{QuantizedType::int8, 64, false, 0.995},
                                             {QuantizedType::nf4, 64, true, 0}};
  for (const Quantization& format : formats) {
    const bool int8 = format.type == QuantizedType::int8;
    const DType dtype = int8 ? DType::bf16 : DType::f32;
    const QuantizedArray quantized(format, {60, 40}, columns, 5);
    const WeightMatrix w(quantized.matrix(), dtype);
    const int64_t outputs = w.dim(0);
    const Array x(dtype, {rows, columns}, test::random_values(rows * columns, 1));
    const Array bias(dtype, {outputs}, test::random_values(outputs, 2));
    const Array left(dtype, {rows, rank}, test::random_values(rows * rank, 3));
    const Array right(dtype, {outputs, rank}, test::random_values(outputs * rank, 4));
    const ProductRole role = int8 ? ProductRole::prefill : ProductRole::decoding;
    const test::Values all = decoded(role, x, w, bias, {left, right}).values();
    for (const auto& [row, first, count] :
         {std::tuple<int64_t, int64_t, int64_t>(0, 0, 100), {66, 59, 3}, {3, 61, 39}, {5, 60, 40}}) {
      const LowRank added{left.tensor().rows(row, 1), right.tensor().rows(first, count)};
      const test::Values part =
          decoded(role, x.tensor().rows(row, 1), w.rows(first, count), bias.tensor().rows(first, count), added)
              .values();
      EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + row * outputs + first)) << row << ", " << first;
    }
    const Array dense = quantized.dequantized(dtype);
    const test::Values expected = decoded(role, x, dense.tensor(), bias, {left, right}).values();
    double largest = 0, error = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      largest = std::fmax(largest, std::fabs(expected[i]));
      error = std::fmax(error, std::fabs(all[i] - expected[i]));
    }
    EXPECT_LT(error, largest * (int8 ? 1e-2 : 1e-5));
    EXPECT_GT(error, int8 ? largest * 1e-4 : -1) << "control: inputs are rounded";
  }
}

// So --estimate counts it: on a GPU the dequantised matrix, and codes of the inputs.
TEST(QuantizedMatrix, ProductsUsePlannedMemory) {
  for (const QuantizedType type : {QuantizedType::nf4, QuantizedType::int8}) {
    const QuantizedArray quantized({type, 64, false, 0.9}, {24, 8}, 72, 5);
    const WeightMatrix w(quantized.matrix(), DType::bf16);
    const Array x(DType::bf16, {6, 72}, test::random_values(6 * 72, 1)), y(DType::f32, {6, 32}),
        dx(DType::f32, {6, 72});
    const Array dy(DType::bf16, {6, 32}, test::random_values(6 * 32, 2));
    const int64_t bytes =
        linear_workspace_bytes({72, 32, false, DType::bf16, DType::f32, true, true, 0, type}, x.tensor().dim(0));
    ASSERT_GT(bytes, 0);
    const DeviceBuffer memory(bytes);
    for (const bool forward : {true, false}) {
      fill_zero(memory.data(), bytes, test::stream());
      const WorkspaceScope scope(Tensor(memory.data(), DType::u8, {bytes}));
      forward ? linear_forward(y, x, w, Tensor(), test::stream())
              : linear_backward_input(dx, dy, w, false, test::stream());
      std::vector<char> used(static_cast<size_t>(bytes));
      copy_to_host(used.data(), memory.data(), bytes, test::stream());
      test::stream().synchronize();
      EXPECT_TRUE(std::any_of(used.begin(), used.end(), [](char c) { return c != 0; })) << forward;
      EXPECT_LE(workspace_peak(), bytes);
    }
  }
}

}  // namespace
}  // namespace llmtrain
