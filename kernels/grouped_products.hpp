#pragma once
// The device's part of kernels/grouped_matmul.hpp: products that it computes in one launch. False: it computes them one
// by one, which depends on the matrices' shape and types alone. Arguments are checked, and no row count is 0 but in
// gradients.

#include "kernels/grouped_matmul.hpp"

namespace llmtrain::products {

bool forward(const Tensor& y, const Tensor& x, std::span<const MatrixRows> matrices, Stream& stream);
bool backward_input(const Tensor& dx, const Tensor& dy, std::span<const MatrixRows> matrices, Stream& stream);
bool backward_weight(std::span<const MatrixGradient> gradients, const Tensor& dy, const Tensor& x, bool accumulate,
                     Stream& stream);

}  // namespace llmtrain::products
