#pragma once
#include <string>

#include "kernels/activation.hpp"
#include "layers/linear.hpp"

namespace llmtrain {

struct MlpSaved {
  Tensor hidden;     ///< compute dtype [N, F], gated [N, 2F]: the activation's derivative, then the gradient
  Tensor activated;  ///< compute dtype [N, F]
};

/// y = down(f(up(x))), or down(f(gate(x)) * up(x)) with gate and up as one matrix.
struct Mlp {
  Activation activation = Activation::gelu_tanh;
  Linear up;
  Linear down;

  void plan_saved(Arena& arena, MlpSaved& saved, DType compute, int64_t rows, const std::string& name) const;
  int64_t scratch_bytes(DType compute, int64_t rows) const;

  void forward(Context& ctx, const Tensor& y, const Tensor& x, const MlpSaved& saved) const;
  void backward(Context& ctx, const Tensor& dx, const Tensor& dy, const Tensor& x, const MlpSaved& saved) const;
};

}  // namespace llmtrain
