#pragma once
#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// gelu: erf form; gelu_tanh: Hendrycks & Gimpel 2016, eq. 2; gated forms: Shazeer 2020 (geglu with the erf form,
/// geglu_tanh with the other).
enum class Activation : uint8_t { gelu, gelu_tanh, relu, silu, swiglu, geglu, geglu_tanh };

constexpr bool is_gated(Activation a) {
  return a == Activation::swiglu || a == Activation::geglu || a == Activation::geglu_tanh;
}

/// Plain: y[N, F] = f(h[N, F]). Gated: h is [N, 2F], gate then up, y[N, F] = f(gate) * up. One dtype, computed in fp32.
/// On return h holds the derivative of y by each of its elements, so that the backward pass need not evaluate f again.
void activation_forward(Activation activation, const Tensor& y, const Tensor& h, Stream& stream);

/// Computes the same y and leaves h unchanged.
void activation_value(Activation activation, const Tensor& y, const Tensor& h, Stream& stream);

/// dh = dy[N, F] times the derivatives from the forward pass ([N, F], gated [N, 2F]). dh may alias them.
void activation_backward(const Tensor& dh, const Tensor& dy, const Tensor& slope, Stream& stream);

}  // namespace llmtrain
