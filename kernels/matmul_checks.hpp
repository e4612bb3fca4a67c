#pragma once
// Checks of the arguments of a matrix product, the same on every device.

#include "core/profile.hpp"
#include "kernels/matmul.hpp"

namespace llmtrain {

inline bool is_matrix(const Tensor& t, int64_t rows, int64_t columns) {
  return t.rank == 2 && t.dim(0) == rows && t.dim(1) == columns;
}

/// Rows may have padded_columns elements if `padded` allows it.
inline bool is_outputs(const Tensor& t, int64_t rows, int64_t columns, bool padded) {
  return is_matrix(t, rows, columns) || (padded && is_matrix(t, rows, padded_columns(columns)));
}

/// Work of a product that reads or writes these tensors and a weight once.
inline Work traffic(std::initializer_list<const Tensor*> tensors, const WeightMatrix& w, double flops) {
  Work work = traffic(tensors, flops);
  work.bytes += static_cast<double>(w.bytes());
  return work;
}

/// N rows, M outputs, K inputs.
struct ProductShape {
  int64_t n, m, k;
  double flops() const { return 2.0 * static_cast<double>(n) * static_cast<double>(m) * static_cast<double>(k); }
};

inline bool is_matrix(const WeightMatrix& w, int64_t rows, int64_t columns) {
  return w.is_quantized() ? w.dim(0) == rows && w.dim(1) == columns : is_matrix(w.dense(), rows, columns);
}

inline void check_product_types(const Tensor& a, DType b, const Tensor& result) {
  LLMTRAIN_CHECK(a.dtype == b && is_compute_type(a.dtype),
                 "matrix products take two operands of one type, fp32, bf16 or fp16");
  LLMTRAIN_CHECK(result.dtype == DType::f32 || result.dtype == a.dtype, "a product is fp32 or of the operands' dtype");
}

inline ProductShape check_linear_forward(const Tensor& y, const Tensor& x, const WeightMatrix& w, const Tensor& bias,
                                         bool padded = false) {
  const ProductShape s{x.dim(0), w.dim(0), w.dim(1)};
  LLMTRAIN_CHECK(is_matrix(x, s.n, s.k) && is_matrix(w, s.m, s.k) && is_outputs(y, s.n, s.m, padded),
                 "y[N, M] = x[N, K] w[M, K]^T");
  LLMTRAIN_CHECK(bias.empty() || bias.numel() == s.m, "a bias has one element per output");
  check_product_types(x, w.dtype(), y);
  return s;
}

inline ProductShape check_linear_backward_input(const Tensor& dx, const Tensor& dy, const WeightMatrix& w,
                                                bool accumulate, bool padded = false) {
  const ProductShape s{dy.dim(0), w.dim(0), w.dim(1)};
  LLMTRAIN_CHECK(is_matrix(dx, s.n, s.k) && is_matrix(w, s.m, s.k) && is_outputs(dy, s.n, s.m, padded),
                 "dx[N, K] = dy[N, M] w[M, K]");
  LLMTRAIN_CHECK(!accumulate || dx.dtype == DType::f32, "gradients are accumulated in fp32");
  check_product_types(dy, w.dtype(), dx);
  return s;
}

inline ProductShape check_linear_backward_weight(const Tensor& dw, const Tensor& dy, const Tensor& x,
                                                 bool padded = false) {
  const ProductShape s{dy.dim(0), padded ? dw.dim(0) : dy.dim(1), x.dim(1)};
  LLMTRAIN_CHECK(is_matrix(dw, s.m, s.k) && is_matrix(x, s.n, s.k) && is_outputs(dy, s.n, s.m, padded),
                 "dw[M, K] = dy[N, M]^T x[N, K]");
  LLMTRAIN_CHECK(dw.dtype == DType::f32, "weight gradients are fp32");
  check_product_types(dy, x.dtype, dw);
  return s;
}

/// Returns the shape of a product with B of M outputs.
inline ProductShape check_linear_backward_weight_rows(const Tensor& dw, int64_t first, const Tensor& dy,
                                                      const Tensor& x) {
  const ProductShape s{dy.dim(0), dw.dim(0), x.dim(1)};
  LLMTRAIN_CHECK(
      is_matrix(dw, s.m, s.k) && is_matrix(x, s.n, s.k) && dy.rank == 2 && first >= 0 && first + s.m <= dy.dim(1),
      "dw[B, K] = dy[N, M]^T x[N, K] in B of M rows");
  LLMTRAIN_CHECK(dw.dtype == DType::f32, "weight gradients are fp32");
  check_product_types(dy, x.dtype, dw);
  return s;
}

/// A matrix [rows, columns] to which a product is added.
struct MatrixShape {
  int64_t rows, columns;
};

/// `operand`: of the first product. `transposed`: right is [columns, R], else [R, columns].
inline void check_added(const LowRank& added, const Tensor& operand, const MatrixShape& sum, bool transposed) {
  if (added.empty()) return;
  const int64_t rank = added.rank();
  LLMTRAIN_CHECK(is_matrix(added.left, sum.rows, rank) &&
                     is_matrix(added.right, transposed ? sum.columns : rank, transposed ? rank : sum.columns),
                 "an added product is left[N, R] times right[M, R]^T or right[R, M]");
  LLMTRAIN_CHECK(added.left.dtype == operand.dtype && added.right.dtype == operand.dtype,
                 "operands of an added product have the dtype of the others");
}

inline double flops(const LowRank& added, int64_t columns) {
  if (added.empty()) return 0;
  return ProductShape{added.left.dim(0), columns, added.rank()}.flops();
}

inline void check_linear_backward_bias(const Tensor& db, const Tensor& dy) {
  LLMTRAIN_CHECK(dy.rank == 2 && db.numel() == dy.dim(1) && db.dtype == DType::f32, "db[M] = sum of rows of dy[N, M]");
}

}  // namespace llmtrain
