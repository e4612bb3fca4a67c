#pragma once
#include "core/batch.hpp"
#include "device/device.hpp"
#include "kernels/dropout.hpp"

namespace llmtrain {

/// x[N, C] (fp32) = dropout(scale * table[ids] + position_table[positions]). Tables are in the compute dtype, [V, C]
/// and [P, C]; an empty position table means none.
void embedding_forward(const Tensor& x, const Tensor& table, const Tensor& position_table, float scale,
                       const Batch& batch, const Dropout& dropout, Stream& stream);

/// dtable[V, C] and dposition[P, C] (fp32; either may be empty) += scattered dropout'(dx), the table's times scale.
/// Rows are added in the order of the batch; threads divide the columns. The caller zeroes the outputs. The table's row
/// `padding` gets nothing; -1: none.
void embedding_backward(const Tensor& dtable, const Tensor& dposition, const Tensor& dx, float scale,
                        const Batch& batch, const Dropout& dropout, Stream& stream, int32_t padding = -1);

}  // namespace llmtrain
