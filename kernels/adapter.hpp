#pragma once
// Kernels of adapters of linear layers: LoRA (Hu et al. 2021, arXiv:2106.09685) and DoRA (Liu et al. 2024,
// arXiv:2402.09353). The products themselves are those of matmul.hpp, with a LowRank addend.

#include "core/batch.hpp"
#include "device/device.hpp"
#include "kernels/dropout.hpp"
#include "kernels/quantized_matrix.hpp"

namespace llmtrain {

/// Position of a block in a matrix.
struct BlockPlace {
  int64_t row = 0;
  int64_t column = 0;
};

/// to[row + i][column + j] = or += (accumulate) scale from[i][j]; the rest of `to` does not change. to [R, C] and from
/// [r, c] have one dtype.
void set_block(const Tensor& to, const BlockPlace& place, const Tensor& from, float scale, Stream& stream,
               bool accumulate = false);
/// to[i][j] = or += (accumulate) scale from[row + i][column + j]. to [r, c] and from [R, C] have one dtype.
void get_block(const Tensor& to, const Tensor& from, const BlockPlace& place, float scale, bool accumulate,
               Stream& stream);

/// out = dropout(in), or out += dropout(in) with accumulate; [N, C] of the batch, one dtype.
void dropout_rows(const Tensor& out, const Tensor& in, const Batch& batch, const Dropout& dropout, bool accumulate,
                  Stream& stream);

/// norms[o] = |w[o] + sum over k of t[o][k] a[k]|_2 of rows of w [M, K], t [M, R], a [R, K], which have one dtype; an
/// empty t means zeros. norms fp32 [M]; 1 for a row of zeros, so that they can be divided by.
void row_norms(const Tensor& norms, const WeightMatrix& w, const Tensor& t, const Tensor& a, Stream& stream);
/// The squares of these norms, of a matrix of which w and a have some columns; 0 for a row of zeros.
void row_squares(const Tensor& squares, const WeightMatrix& w, const Tensor& t, const Tensor& a, Stream& stream);
/// Turns sums of squares, fp32 [M], into norms, as row_norms() gives them.
void roots_of_squares(const Tensor& squares, Stream& stream);
/// to[n][m] = from[n][m] numerators[m] / denominators[m] + bias[m]; an empty bias means none. to and from [N, M] have
/// one dtype and may alias; numerators and bias have this dtype or fp32, denominators fp32.
void scale_columns(const Tensor& to, const Tensor& from, const Tensor& numerators, const Tensor& denominators,
                   const Tensor& bias, Stream& stream);
/// dots[m] (fp32) = or += (accumulate) the sum over n of a[n][m] b[n][m] / denominators[m]. a and b [N, M] have one
/// dtype. Rows are summed in fixed blocks.
void column_dots(const Tensor& dots, const Tensor& a, const Tensor& b, const Tensor& denominators, bool accumulate,
                 Stream& stream);

}  // namespace llmtrain
