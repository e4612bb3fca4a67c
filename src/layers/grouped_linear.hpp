#pragma once
// Passes of several linear layers of one shape over rows of their own: those of experts.

#include <span>
#include <vector>

#include "layers/linear.hpp"

namespace llmtrain {

/// A layer and the number of its rows, which follow those of the layer before.
struct LinearRows {
  const Linear* linear;
  int64_t rows;
  std::vector<int64_t> block_ends = {};  ///< see Context::row_block_ends(), of these rows
};

void grouped_forward(Context& ctx, std::span<const LinearRows> layers, const Tensor& y, const Tensor& x);
/// Computes dx.
void grouped_backward_input(Context& ctx, std::span<const LinearRows> layers, const Tensor& dx, const Tensor& dy);
/// Computes the gradients of trained parameters, those of matrices from the last layer to the first one.
void grouped_backward_parameters(Context& ctx, std::span<const LinearRows> layers, const Tensor& dy, const Tensor& x);
/// True if grouped_backward_parameters() may have all of these layers at once before others of their units.
bool writes_gradients_together(const Context& ctx, std::span<const LinearRows> layers);

}  // namespace llmtrain
