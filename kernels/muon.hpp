#pragma once
// Element-wise parts of Muon (Jordan et al. 2024), beside its matrix products. All are independent of how elements are
// divided, and both devices give the same bits.

#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// m and g in the order of torch.optim.Muon: m = lerp(m, g, 1 - momentum); the update is m, or with Nesterov's form
/// lerp(g, m, momentum), rounded to bf16.
struct MuonMomentum {
  double momentum = 0.95;
  bool nesterov = true;
  double gradient_scale = 1;
};
/// update: bf16 [n]; momentum and gradient: fp32 [n].
void muon_momentum(const Tensor& update, const Tensor& momentum, const Tensor& gradient, const MuonMomentum& step,
                   Stream& stream);

/// x /= max(root of the sum, epsilon), both rounded to bf16; x bf16 [n]. squares: an ExactSum's integers, on the
/// device, which are carried; divisor: fp32 [1], which gets the divisor.
void muon_normalize(const Tensor& x, const Tensor& squares, float epsilon, const Tensor& divisor, Stream& stream);
/// x = round(a * x + c * product), in fp32 and rounded once; x bf16 [n], product fp32 [n].
void muon_add_product(const Tensor& x, float a, const Tensor& product, float c, Stream& stream);

/// master = decay * master + factor * update; master fp32 [n], update bf16 [n].
void muon_apply(const Tensor& master, const Tensor& update, float decay, float factor, Stream& stream);

}  // namespace llmtrain
