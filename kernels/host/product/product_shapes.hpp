#pragma once
// A linear layer's products as shapes of the blocked product.

#include "kernels/host/product/gemm.hpp"
#include "kernels/matmul_checks.hpp"

namespace llmtrain::host {

/// y[n, m] = x[n, k] w[m, k]^T
constexpr GemmShape forward_shape(const ProductShape& s, DType input, DType output) {
  return {.m = s.n, .n = s.m, .k = s.k, .b_transposed = true, .input = input, .output = output};
}

/// dx[n, k] = dy[n, m] w[m, k]
constexpr GemmShape backward_input_shape(const ProductShape& s, DType input, DType output, bool accumulate) {
  return {.m = s.n, .n = s.k, .k = s.m, .accumulate = accumulate, .input = input, .output = output};
}

/// dw[m, k] = dy[n, m]^T x[n, k]
constexpr GemmShape backward_weight_shape(const ProductShape& s, DType input, bool accumulate) {
  return {.m = s.m, .n = s.k, .k = s.n, .a_transposed = true, .accumulate = accumulate, .input = input};
}

}  // namespace llmtrain::host
