#pragma once
// The products of a head with few outputs: K numbers for each row. Only rows that count are read.

#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// out[i][k] = x[i] . w[k] + bias[k] where weights[i] is not 0, and 0 in other rows; out fp32 [N, K] ([N] for one
/// output), weights fp32 [N], x [N, C] and w [K, C] of one dtype, bias [K] of that dtype, or empty. In fp64, in an
/// order that depends on C alone: columns are dealt to 32 lanes in turn, and lanes are added as a tree.
void scalar_head_forward(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& weights,
                         Stream& stream);

/// dw[k] = or += the sum of dout[i][k] * x[i] over the rows where dout[i][k] is not 0; dw fp32 [K, C], dout fp32 [N,
/// K]. In fp64, one row after the other.
void scalar_head_backward_weight(const Tensor& dw, const Tensor& dout, const Tensor& x, bool accumulate,
                                 Stream& stream);

/// db[k] = or += the sum of dout[i][k]; db fp32 [K]. In fp64, one row after the other.
void scalar_head_backward_bias(const Tensor& db, const Tensor& dout, bool accumulate, Stream& stream);

/// dx[i] = or += the sum over k of dout[i][k] * w[k], added in fp32 in the order of k; dx and w of one dtype.
void scalar_head_backward_input(const Tensor& dx, const Tensor& dout, const Tensor& w, bool accumulate, Stream& stream);

}  // namespace llmtrain
