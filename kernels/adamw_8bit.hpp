#pragma once
// AdamW with moments of 8 bits (Dettmers et al. 2022, arXiv:2110.02861), in the order of bitsandbytes' kernel for GPUs.

#include "kernels/adamw.hpp"

namespace llmtrain {

/// Whole chunks; of every chunk the moments have a code for each element and the largest magnitude as scale: m of the
/// signed dynamic map, v of the unsigned one. Weights, if not empty, get the master rounded to their dtype.
struct Adamw8bitTensors {
  Tensor master;                  ///< fp32 [n]
  Tensor m, m_scale, v, v_scale;  ///< u8 [n], fp32 [n / 256]
  Tensor gradient, weights;       ///< fp32 [n], any compute dtype [n] or empty
  int64_t decay_begin = 0;        ///< elements of the master that decay
  int64_t decay_end = 0;
};

/// Updates with c1 = 1 - beta1^t and c2 = sqrt(1 - beta2^t): p -= lr * c2 / c1 * m / (sqrt(v) + eps * c2), then
/// p *= 1 - lr * decay. A code of m is the nearest of the sign of m; a gradient that is not finite resets both moments
/// and leaves p. Chunks are independent: any division, and both devices, give the same bits.
void adamw_8bit_update(const Adamw8bitTensors& tensors, const AdamwStep& step, Stream& stream);
/// The same update on the host's processors, on tensors in host memory, without a decision.
void adamw_8bit_update_on_host(const Adamw8bitTensors& tensors, const AdamwStep& step);

}  // namespace llmtrain
