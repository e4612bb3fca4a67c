#pragma once
// The products of a head with one output: a number for each row. Only rows that count are read.

#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// out[i] = x[i] . w where weights[i] is not 0, and 0 in other rows; out and weights fp32 [N], x and w of one dtype,
/// [N, C] and C elements. In fp64, in an order that depends on C alone: columns are dealt to 32 lanes in turn, and
/// lanes are added as a tree.
void scalar_head_forward(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& weights, Stream& stream);

/// dw = or += the sum of dout[i] * x[i] over the rows whose dout is not 0; dw fp32 of C elements, dout fp32 [N]. In
/// fp64, one row after the other.
void scalar_head_backward_weight(const Tensor& dw, const Tensor& dout, const Tensor& x, bool accumulate,
                                 Stream& stream);

/// dx[i] = or += dout[i] * w, added in fp32; dx and w of one dtype.
void scalar_head_backward_input(const Tensor& dx, const Tensor& dout, const Tensor& w, bool accumulate, Stream& stream);

}  // namespace llmtrain
