#pragma once
#include "core/batch.hpp"
#include "device/device.hpp"
#include "kernels/dropout.hpp"

namespace llmtrain {

/// x[N, C] (fp32) = dropout(scale * table[ids] + position_table[positions]). Tables are in the compute dtype, [V, C]
/// and [P, C]; an empty position table means none.
void embedding_forward(const Tensor& x, const Tensor& table, const Tensor& position_table, float scale,
                       const Batch& batch, const Dropout& dropout, Stream& stream);

/// Throws Error unless these are arguments of add_table_rows().
inline void check_table_rows(const Tensor& x, const Tensor& table, const Tensor& ids) {
  LLMTRAIN_CHECK(x.dtype == DType::f32 && table.dim(1) == x.dim(1) && ids.numel() == x.dim(0),
                 "the table must have the width of the output, and one id for each row");
}
/// x[n] += scale * table[ids[n] - first] for the rows whose id is one of [first, first + rows of the table); ids int32
/// [N], table [rows, C] in the compute dtype, x fp32 [N, C].
void add_table_rows(const Tensor& x, const Tensor& table, int64_t first, const Tensor& ids, float scale,
                    Stream& stream);

/// dtable[V, C] and dposition[P, C] (fp32; either may be empty) += scattered dropout'(dx), the table's times scale.
/// Rows are added in the order of the batch; threads divide the columns. The caller zeroes the outputs. The table's row
/// `padding` gets nothing; -1: none. The table may be rows [first, ...) of a larger one: it gets nothing from other
/// ids.
void embedding_backward(const Tensor& dtable, const Tensor& dposition, const Tensor& dx, float scale,
                        const Batch& batch, const Dropout& dropout, Stream& stream, int32_t padding = -1,
                        int64_t first = 0);

}  // namespace llmtrain
