#include "kernels/host/product/row_dots.hpp"

namespace llmtrain::host {

void quantized_dots_avx512(const QuantizedDots& d, int64_t x_rows) { QuantizedDotsOf<Float16>::run(d, x_rows); }

}  // namespace llmtrain::host
