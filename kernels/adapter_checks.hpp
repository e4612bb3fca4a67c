#pragma once
// Checks of the arguments of adapter kernels, the same on every device.

#include "kernels/adapter.hpp"
#include "kernels/matmul_checks.hpp"

namespace llmtrain {

/// `block` lies in `whole`.
inline void check_block(const Tensor& whole, const BlockPlace& place, const Tensor& block) {
  LLMTRAIN_CHECK(whole.rank == 2 && block.rank == 2 && whole.dtype == block.dtype,
                 "a matrix and its block have one dtype");
  LLMTRAIN_CHECK(place.row >= 0 && place.column >= 0 && place.row + block.dim(0) <= whole.dim(0) &&
                     place.column + block.dim(1) <= whole.dim(1),
                 "a block lies in its matrix");
}

inline void check_dropout_rows(const Tensor& out, const Tensor& in, const Batch& batch) {
  LLMTRAIN_CHECK(in.rank == 2 && out.shape == in.shape && out.dtype == in.dtype && in.dim(0) == batch.tokens,
                 "dropout of rows: out and in [N, C] of the batch, of one dtype");
}

inline void check_row_norms(const Tensor& norms, const WeightMatrix& w, const Tensor& t, const Tensor& a) {
  LLMTRAIN_CHECK(is_matrix(w, w.dim(0), w.dim(1)) && norms.numel() == w.dim(0) && norms.dtype == DType::f32,
                 "norms (fp32) of the rows of a matrix");
  if (t.empty()) return;
  LLMTRAIN_CHECK(is_matrix(t, w.dim(0), t.dim(1)) && is_matrix(a, t.dim(1), w.dim(1)) && t.dtype == w.dtype() &&
                     a.dtype == w.dtype(),
                 "norms of w[M, K] + t[M, R] a[R, K], of one dtype");
}

inline void check_scale_columns(const Tensor& to, const Tensor& from, const Tensor& numerators,
                                const Tensor& denominators, const Tensor& bias) {
  const auto is_vector = [&](const Tensor& t) {
    return t.numel() == from.dim(1) && (t.dtype == from.dtype || t.dtype == DType::f32);
  };
  LLMTRAIN_CHECK(from.rank == 2 && to.shape == from.shape && to.dtype == from.dtype, "to and from [N, M] of one dtype");
  LLMTRAIN_CHECK(is_vector(numerators) && is_vector(denominators) && denominators.dtype == DType::f32 &&
                     (bias.empty() || is_vector(bias)),
                 "one factor and one bias for each column");
}

inline void check_column_dots(const Tensor& dots, const Tensor& a, const Tensor& b, const Tensor& denominators) {
  LLMTRAIN_CHECK(a.rank == 2 && b.shape == a.shape && b.dtype == a.dtype, "a and b [N, M] of one dtype");
  LLMTRAIN_CHECK(dots.numel() == a.dim(1) && dots.dtype == DType::f32 && denominators.numel() == a.dim(1) &&
                     denominators.dtype == DType::f32,
                 "one fp32 sum and one divisor for each column");
}

}  // namespace llmtrain
