#pragma once
// Updates of optimizers with at most one state per element: SGD and Lion. Elements are independent: any division gives
// the same bits, and both devices give the same.

#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// fp32 [n] each; the momentum is empty if the optimizer has none. Weights, if not empty, get the master rounded to
/// their dtype.
struct UpdateTensors {
  Tensor master, momentum, gradient, weights;
};

/// SGD in the order of torch.optim.SGD: g += decay * p; m = momentum * m + g; p -= lr * (m, or with Nesterov's form
/// g + momentum * m).
struct SgdStep {
  double learning_rate = 0;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
  double gradient_scale = 1;
  Tensor decision = {};  ///< replaces gradient_scale, see AdamwStep
};

/// Lion (Chen et al. 2023, arXiv:2302.06675): p *= 1 - lr * decay; p -= lr * sign(beta1 * m + (1 - beta1) * g);
/// m = beta2 * m + (1 - beta2) * g.
struct LionStep {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.99;
  double weight_decay = 0;
  double gradient_scale = 1;
  Tensor decision = {};
};

void momentum_update(const UpdateTensors& tensors, const SgdStep& step, Stream& stream);
void momentum_update(const UpdateTensors& tensors, const LionStep& step, Stream& stream);
/// The same updates on the host's processors, on tensors in host memory, without a decision.
void momentum_update_on_host(const UpdateTensors& tensors, const SgdStep& step);
void momentum_update_on_host(const UpdateTensors& tensors, const LionStep& step);

}  // namespace llmtrain
