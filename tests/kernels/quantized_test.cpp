// Quantised matrices on every device.

#include "kernels/adapter.hpp"
#include "kernels/matmul.hpp"
#include "kernels/quantized_array.hpp"

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
        linear_forward(y, x, w, Tensor(), test::stream());
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

}  // namespace
}  // namespace llmtrain
