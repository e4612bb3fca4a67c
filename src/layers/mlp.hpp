#pragma once

#include "kernels/activation.hpp"
#include "layers/linear.hpp"
#include "layers/saved.hpp"

namespace llmtrain {

struct MlpSaved {
  Tensor hidden;     ///< compute dtype [N, F], gated [N, 2F]: the activation's derivative, then the gradient
  Tensor activated;  ///< compute dtype [N, F]
};

/// y = down(f(up(x))), or down(f(gate(x)) * up(x)) with gate and up as one matrix.
struct Mlp {
  using Saved = MlpSaved;

  Activation activation = Activation::gelu_tanh;
  float limit = 0;  ///< of the activation
  Linear up;
  Linear down;

  template <class F>
  void visit_saved(MlpSaved& s, DType compute, int64_t rows, const F& f, const char* part = "") const {
    f(s.hidden, {part, ".hidden", compute, rows, up.out, Recompute::block});
    f(s.activated, {part, ".activated", compute, rows, down.in, Recompute::activation});
  }
  const Linear& first() const { return up; }
  const Linear& last() const { return down; }
  const Tensor& last_input(const MlpSaved& saved) const { return saved.activated; }
  /// Appends the trained parameters that all blocks share.
  void append_shared(std::vector<SharedParam>& shared) const {
    up.append_shared(shared);
    down.append_shared(shared);
  }
  /// Scratch bytes for forward and backward; `output` is y's dtype.
  int64_t scratch_bytes(DType compute, DType output, int64_t rows) const;

  void forward(Context& ctx, const Batch& batch, const Tensor& y, const Tensor& x, const MlpSaved& saved) const;
  /// Runs forward() up to `down`, which reads saved.activated. Tensors that `kept` lacks are recomputed before the
  /// backward pass (with `again`), which then has the tensors of `kept`.
  void forward_hidden(Context& ctx, const Batch& batch, const Tensor& x, const MlpSaved& saved, const MlpSaved& kept,
                      bool again) const;
  // Parts of forward_hidden(): whether `up` runs, and what follows it.
  bool runs_up(const MlpSaved& kept, bool again) const { return !again || kept.hidden.empty(); }
  void activate(Context& ctx, const Tensor& activated, const Tensor& hidden, const MlpSaved& kept, bool again) const;
  /// An empty dx is not computed.
  void backward(Context& ctx, const Batch& batch, const Tensor& dx, const Tensor& dy, const Tensor& x,
                const MlpSaved& saved) const;
  /// True if the backward pass needs the gradient of the hidden layer.
  bool hidden_gradient(bool input) const { return input || up.is_trained(); }
};

}  // namespace llmtrain
