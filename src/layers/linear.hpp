#pragma once
#include <string>

#include "layers/context.hpp"

namespace llmtrain {

/// Rows of a fused matrix under their external names, e.g. {"...q_proj", 64}, {"...k_proj", 16}, {"...v_proj", 16}. The
/// suffixes .weight and .bias are appended.
struct LinearPart {
  std::string name;
  int64_t rows;
  bool transposed = false;  ///< true if files store the transpose
};

/// y = x W^T + b. Several projections of one input are one Linear with several slices.
struct Linear {
  ParamRef weight;
  ParamRef bias;
  int64_t in = 0;
  int64_t out = 0;

  static Linear declare(UnitBuilder& unit, const std::vector<LinearPart>& parts, int64_t in, bool bias, double std);

  /// Bytes of workspace that the kernels need; `output` is y's dtype.
  int64_t workspace_bytes(DType compute, DType output, int64_t rows, bool training) const;
  /// x [N, in] -> y [N, out].
  void forward(Context& ctx, const Tensor& y, const Tensor& x) const;
  bool is_trained() const { return weight.is_trained() || bias.is_trained(); }
  /// Computes gradients of weight and bias if they are trained, and dx [N, in] unless it is empty.
  void backward(Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x) const;
};

}  // namespace llmtrain
