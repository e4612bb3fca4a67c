#include "kernels/grouped_matmul.hpp"

#include <vector>

#include "kernels/matmul_checks.hpp"

namespace llmtrain {

namespace {

/// Calls check(matrix, first row) for each product; returns those with rows.
template <class F>
std::vector<MatrixRows> with_rows(std::span<const MatrixRows> matrices, int64_t rows, const F& check) {
  std::vector<MatrixRows> found;
  int64_t first = 0;
  for (const MatrixRows& m : matrices) {
    LLMTRAIN_CHECK(m.rows >= 0 && first + m.rows <= rows && m.w.dtype == matrices.front().w.dtype &&
                       m.w.dim(0) == matrices.front().w.dim(0) && m.w.dim(1) == matrices.front().w.dim(1),
                   "matrices of a group have one shape and type, and rows that follow each other");
    check(m, first);
    if (m.rows > 0) found.push_back(m);
    first += m.rows;
  }
  LLMTRAIN_CHECK(first == rows, "every row of a group has a matrix");
  return found;
}

}  // namespace

void grouped_forward(const Tensor& y, const Tensor& x, std::span<const MatrixRows> matrices, ProductRole role,
                     Stream& stream) {
  const auto found = with_rows(matrices, x.dim(0), [&](const MatrixRows& m, int64_t first) {
    check_linear_forward(y.rows(first, m.rows), x.rows(first, m.rows), m.w, m.bias);
  });
  if (found.empty() || products::forward(y, x, found, stream)) return;
  int64_t first = 0;
  for (const MatrixRows& m : found) {
    linear_forward(y.rows(first, m.rows), x.rows(first, m.rows), m.w, m.bias, stream, role);
    first += m.rows;
  }
}

void grouped_backward_input(const Tensor& dx, const Tensor& dy, std::span<const MatrixRows> matrices, Stream& stream) {
  const auto found = with_rows(matrices, dy.dim(0), [&](const MatrixRows& m, int64_t first) {
    check_linear_backward_input(dx.rows(first, m.rows), dy.rows(first, m.rows), m.w, false);
  });
  if (found.empty() || products::backward_input(dx, dy, found, stream)) return;
  int64_t first = 0;
  for (const MatrixRows& m : found) {
    linear_backward_input(dx.rows(first, m.rows), dy.rows(first, m.rows), m.w, false, stream);
    first += m.rows;
  }
}

void grouped_backward_weight(std::span<const MatrixGradient> gradients, const Tensor& dy, const Tensor& x,
                             bool accumulate, Stream& stream) {
  for (const MatrixGradient& g : gradients) {
    check_linear_backward_weight_rows(g.dw, g.first_row, dy.rows(g.first, g.rows), x.rows(g.first, g.rows));
  }
  if (gradients.empty() || products::backward_weight(gradients, dy, x, accumulate, stream)) return;
  for (const MatrixGradient& g : gradients) {
    linear_backward_weight_rows(g.dw, g.first_row, dy.rows(g.first, g.rows), x.rows(g.first, g.rows), accumulate,
                                stream);
  }
}

}  // namespace llmtrain
