#pragma once
// Quantised matrices on a GPU: dequantised into scratch, one at a time, before a product; for few rows read in place.

#include "kernels/matmul.hpp"

namespace llmtrain::cuda {

/// The dense matrix, or the quantised one dequantised into scratch(), which the next kernel that uses scratch()
/// overwrites.
Tensor dense_of(const WeightMatrix& matrix, Stream& stream);

/// linear_forward for a weight of 4 bits, whose codes are read once for every four rows; y's rows may be padded. Sums
/// have one order, whatever the number of rows.
void decode_from_codes(const Tensor& y, const Tensor& x, const WeightMatrix& w, const Tensor& bias, Stream& stream,
                       const LowRank& added);

}  // namespace llmtrain::cuda
