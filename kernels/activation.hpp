#pragma once
#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

/// gelu: erf form; gelu_tanh: Hendrycks & Gimpel 2016, eq. 2; gated forms: Shazeer 2020 (geglu with the erf form,
/// geglu_tanh with the other). swiglu_oai (GPT-OSS, arXiv:2508.10925): y = (up + 1) gate sigmoid(1.702 gate), where a
/// limit L > 0 replaces gate by min(gate, L) and up by the nearest number in [-L, L].
enum class Activation : uint8_t { gelu, gelu_tanh, relu, silu, swiglu, geglu, geglu_tanh, swiglu_oai };

inline constexpr float swiglu_oai_alpha = 1.702f;

constexpr bool is_gated(Activation a) {
  return a == Activation::swiglu || a == Activation::geglu || a == Activation::geglu_tanh ||
         a == Activation::swiglu_oai;
}

/// Plain: y[N, F] = f(h[N, F]). Gated: h is [N, 2F], gate then up, y[N, F] = f(gate) * up. One dtype, computed in fp32.
/// On return h holds the derivative of y by each of its elements, so that the backward pass need not evaluate f again.
/// Only swiglu_oai reads the limit; 0: none. The derivative at a limit is that from inside.
void activation_forward(Activation activation, const Tensor& y, const Tensor& h, Stream& stream, float limit = 0);

/// Computes the same y and leaves h unchanged.
void activation_value(Activation activation, const Tensor& y, const Tensor& h, Stream& stream, float limit = 0);

/// dh = dy[N, F] times the derivatives from the forward pass ([N, F], gated [N, 2F]). dh may alias them.
void activation_backward(const Tensor& dh, const Tensor& dy, const Tensor& slope, Stream& stream);

}  // namespace llmtrain
