#include "kernels/host/product/row_dots.hpp"

namespace llmtrain::host {

void dense_dots_avx512(const DenseDots<float>& d, int64_t x_rows) { DenseDotsOf<Float16>::run(d, x_rows); }
void dense_dots_avx512(const DenseDots<bf16>& d, int64_t x_rows) { DenseDotsOf<Float16>::run(d, x_rows); }
void dense_dots_avx512(const DenseDots<f16>& d, int64_t x_rows) { DenseDotsOf<Float16>::run(d, x_rows); }
void quantized_dots_avx512(const QuantizedDots& d, int64_t x_rows) { QuantizedDotsOf<Float16>::run(d, x_rows); }

}  // namespace llmtrain::host
