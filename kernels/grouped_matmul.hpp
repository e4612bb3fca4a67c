#pragma once
// Products of several matrices of one shape with rows of their own, as those of a layer's experts. The bits of a row of
// grouped_forward() depend on that row and its matrix alone: not on the other rows, nor on what else is multiplied.

#include <cstdint>
#include <span>

#include "kernels/grouped_products.hpp"

namespace llmtrain {

/// y[N, M] = x[N, K] w[M, K]^T + bias[M], each row with its matrix; N is the sum of all rows. Types as in
/// linear_forward(). `role`: that of products that go to the device one by one, other than training.
void grouped_forward(const Tensor& y, const Tensor& x, std::span<const MatrixRows> matrices, ProductRole role,
                     Stream& stream);

/// dx[N, K] = dy[N, M] w[M, K], each row with its matrix.
void grouped_backward_input(const Tensor& dx, const Tensor& dy, std::span<const MatrixRows> matrices, Stream& stream);

/// dw[B, K] = columns [first_row, first_row + B) of dy[N, M], transposed, times x[N, K], or += with accumulate.
void grouped_backward_weight(std::span<const MatrixGradient> gradients, const Tensor& dy, const Tensor& x,
                             bool accumulate, Stream& stream);

}  // namespace llmtrain
