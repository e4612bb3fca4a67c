#pragma once
// The device's part of kernels/grouped_matmul.hpp: products that it computes in one launch. False: it computes them one
// by one, which depends on the matrices' shape and types alone. Arguments are checked, and no matrix is without rows.

#include <cstdint>
#include <span>

#include "kernels/matmul.hpp"

namespace llmtrain {

/// A matrix [M, K] and the number of its rows, which follow those of the matrix before.
struct MatrixRows {
  Tensor w;
  Tensor bias;  ///< [M] or empty, for forward products
  int64_t rows;
};

/// Gradient of a matrix, or of its rows [first_row, first_row + B), from rows [first, first + rows) of a batch.
struct MatrixGradient {
  Tensor dw;  ///< fp32 [B, K]
  int64_t first_row, first, rows;
};

}  // namespace llmtrain

namespace llmtrain::products {

bool forward(const Tensor& y, const Tensor& x, std::span<const MatrixRows> matrices, Stream& stream);
bool backward_input(const Tensor& dx, const Tensor& dy, std::span<const MatrixRows> matrices, Stream& stream);
bool backward_weight(std::span<const MatrixGradient> gradients, const Tensor& dy, const Tensor& x, bool accumulate,
                     Stream& stream);

}  // namespace llmtrain::products
