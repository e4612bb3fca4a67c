#pragma once
#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// AdamW (Loshchilov & Hutter 2019) in PyTorch's order of operations: p *= 1 - lr * decay; m, v; p -= lr / c1 * m /
/// (sqrt(v) / sqrt(c2) + eps).
struct AdamwStep {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;    ///< for this range; 0 for vectors
  int64_t step = 1;           ///< t of the bias corrections 1 - beta^t, from 1
  double gradient_scale = 1;  ///< clipping factor (and 1 / token count), applied to the gradient first
  /// A StepDecision on the device (fp64 [2]), whose factor replaces gradient_scale; if the decision is not to apply the
  /// step, nothing changes. Empty: none. Not for adamw_update_on_host() in a GPU build.
  Tensor decision = {};
};

/// Updates master, m, v (fp32 [n]) from gradient (fp32 [n]) in one pass and, if weights is not empty, writes the master
/// rounded to its dtype. Elements are independent: any division gives the same bits.
void adamw_update(const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& gradient, const Tensor& weights,
                  const AdamwStep& step, Stream& stream);
/// Runs the same update on the host's processors, on tensors in host memory, with the same bits.
void adamw_update_on_host(const Tensor& master, const Tensor& m, const Tensor& v, const Tensor& gradient,
                          const Tensor& weights, const AdamwStep& step);

}  // namespace llmtrain
