#pragma once
#include "layers/context.hpp"

namespace llmtrain {

/// An output layer of few numbers for each row that counts: the product of its hidden state with a matrix. One number
/// is a reward; several are the logits of labels.
struct ScalarHead {
  ParamRef weight;     ///< [K, C]
  ParamRef bias = {};  ///< [K]; need not exist

  /// x compute dtype [N, C]; scores fp32 [N, K] ([N] for one output), 0 where loss_weights, fp32 [N], are 0.
  void forward(Context& ctx, const Tensor& x, const Tensor& loss_weights, const Tensor& scores) const;
  /// Computes dx, which may be x, unless it is empty, and the gradients of weight and bias if they are trained.
  void backward(Context& ctx, const Tensor& dx, const Tensor& x, const Tensor& dscores) const;
  /// Computes the gradients of weight and bias, if they are trained.
  void backward_weight(Context& ctx, const Tensor& x, const Tensor& dscores) const;
  /// Adds to dx, compute dtype [N, C].
  void add_input_gradient(Context& ctx, const Tensor& dx, const Tensor& dscores) const;
};

}  // namespace llmtrain
