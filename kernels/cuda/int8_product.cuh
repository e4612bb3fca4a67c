#pragma once
// Forward product of LLM.int8 on a GPU: kernels/int8_arithmetic.hpp.

#include "kernels/matmul.hpp"

namespace llmtrain::cuda {

/// linear_forward for a weight of int8; y's rows may be padded. In training a column with an outlier in any row is one
/// for all rows; in other roles each row has its own outliers. Sums have one order, whatever the number of rows.
void int8_forward(const Tensor& y, const Tensor& x, const WeightMatrix& w, const Tensor& bias, Stream& stream,
                  ProductRole role, const LowRank& added);
/// Bytes of scratch() for inputs [rows, columns] and this number of outputs.
int64_t int8_scratch_bytes(int64_t rows, int64_t columns, int64_t outputs);
/// sums [rows, outputs], int32 = inputs [rows, columns] times weights [outputs, columns]^T by cuBLASLt, which is exact;
/// false, and nothing is done, for a shape that is not of whole words of 4 bytes, or could overflow.
bool multiply_codes(const Tensor& sums, const int8_t* inputs, const int8_t* weights, int64_t columns, Stream& stream);

}  // namespace llmtrain::cuda
