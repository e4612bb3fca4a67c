#pragma once
// Quantised matrices on a GPU: dequantised into scratch, one at a time, before a product.

#include "kernels/quantized_matrix.hpp"

namespace llmtrain::cuda {

/// The dense matrix, or the quantised one dequantised into scratch(), which the next kernel that uses scratch()
/// overwrites.
Tensor dense_of(const WeightMatrix& matrix, Stream& stream);

}  // namespace llmtrain::cuda
