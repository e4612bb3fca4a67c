#pragma once
// Loops of activation.cpp for vectors V of floats. activation_avx512.cpp compiles them for wider vectors, with
// instructions that the rest of the program must not contain: so they take raw pointers, and call only templates over V
// and inlined functions.

#include <limits>

#include "kernels/activation.hpp"
#include "kernels/host/special_functions.hpp"

namespace llmtrain::host {

template <class V>
struct ValueAndSlope {
  V value;
  V slope;  ///< d value / dx
};

struct Gelu {
  template <class V>
  static ValueAndSlope<V> at(V x) {
    V density;
    const V distribution = fast_normal_cdf_and_density(x, density);
    return {x * distribution, fused(x, density, distribution)};
  }
};

/// 0.5 x (1 + tanh u) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
  template <class V>
  static ValueAndSlope<V> at(V x) {
    const V s = fast_sigmoid(1.59576912f * x * fused(0.044715f * x, x, 1.0f));
    const V derivative = 1.59576912f * fused(0.134145f * x, x, 1.0f);  // of 2 u
    return {x * s, fused(x * derivative, s * (1.0f - s), s)};
  }
};

struct Relu {  // propagates NaN
  template <class V>
  static ValueAndSlope<V> at(V x) {
    return {x <= V{} ? V{} : x, x <= V{} ? V{} : V{} + 1.0f};
  }
};

struct Silu {
  template <class V>
  static ValueAndSlope<V> at(V x) {
    const V s = fast_sigmoid(x);
    return {x * s, fused(x * s, 1.0f - s, s)};
  }
};

template <class V>
class ActivationLoops {
 public:
  /// y[n] = f(h[n]), or f(h) * up if up is given. With slopes h and up are overwritten by the derivatives of y by them;
  /// y has the same bits either way.
  static void forward(Activation activation, DType dtype, bool slopes, void* y, void* h, void* up, int64_t n,
                      float limit) {
    switch (activation) {
      case Activation::gelu:
      case Activation::geglu:
        return forward<Gelu>(dtype, slopes, y, h, up, n);
      case Activation::gelu_tanh:
      case Activation::geglu_tanh:
        return forward<GeluTanh>(dtype, slopes, y, h, up, n);
      case Activation::relu:
        return forward<Relu>(dtype, slopes, y, h, up, n);
      case Activation::silu:
      case Activation::swiglu:
        return forward<Silu>(dtype, slopes, y, h, up, n);
      case Activation::swiglu_oai:
        return forward(dtype, slopes, y, h, up, n, limit > 0 ? limit : std::numeric_limits<float>::infinity());
    }
  }

 private:
  static void forward(DType dtype, bool slopes, void* y, void* h, void* up, int64_t n, float limit) {
    if (dtype == DType::f32) {
      slopes ? limited<true, float>(y, h, up, n, limit) : limited<false, float>(y, h, up, n, limit);
    } else if (dtype == DType::bf16) {
      slopes ? limited<true, bf16>(y, h, up, n, limit) : limited<false, bf16>(y, h, up, n, limit);
    } else {
      slopes ? limited<true, f16>(y, h, up, n, limit) : limited<false, f16>(y, h, up, n, limit);
    }
  }

  /// swiglu_oai; propagates NaN.
  template <bool slopes, class T>
  static void limited(void* y, void* h, void* up, int64_t n, float limit) {
    T *out = static_cast<T*>(y), *gate = static_cast<T*>(h), *linear = static_cast<T*>(up);
    const V most = V{} + limit;
    for (int64_t i = 0; i < n; i += lanes_of<V>) {
      const V x = load_up_to<V>(gate + i, n - i), u = load_up_to<V>(linear + i, n - i);
      const V g = x > most ? most : x;
      const V factor = (u > most ? most : u < -most ? -most : u) + 1.0f;
      const V s = fast_sigmoid(swiglu_oai_alpha * g), f = g * s;
      store_up_to(out + i, f * factor, n - i);
      if constexpr (slopes) {
        const V slope = fused(swiglu_oai_alpha * f, 1.0f - s, s) * factor;
        store_up_to(gate + i, x > most ? V{} : slope, n - i);
        store_up_to(linear + i, u > most || u < -most ? V{} : f, n - i);
      }
    }
  }

  template <class F>
  static void forward(DType dtype, bool slopes, void* y, void* h, void* up, int64_t n) {
    if (dtype == DType::f32) {
      slopes ? forward<F, true, float>(y, h, up, n) : forward<F, false, float>(y, h, up, n);
    } else if (dtype == DType::bf16) {
      slopes ? forward<F, true, bf16>(y, h, up, n) : forward<F, false, bf16>(y, h, up, n);
    } else {
      slopes ? forward<F, true, f16>(y, h, up, n) : forward<F, false, f16>(y, h, up, n);
    }
  }

  template <class F, bool slopes, class T>
  static void forward(void* y, void* h, void* up, int64_t n) {
    if (up == nullptr) {
      plain<F, slopes>(static_cast<T*>(y), static_cast<T*>(h), n);
    } else {
      gated<F, slopes>(static_cast<T*>(y), static_cast<T*>(h), static_cast<T*>(up), n);
    }
  }

  template <class F, bool slopes, class T>
  static void plain(T* y, T* h, int64_t n) {
    for (int64_t i = 0; i < n; i += lanes_of<V>) {
      const ValueAndSlope<V> f = F::at(load_up_to<V>(h + i, n - i));
      store_up_to(y + i, f.value, n - i);
      if constexpr (slopes) store_up_to(h + i, f.slope, n - i);
    }
  }

  template <class F, bool slopes, class T>
  static void gated(T* y, T* gate, T* up, int64_t n) {
    for (int64_t i = 0; i < n; i += lanes_of<V>) {
      const ValueAndSlope<V> f = F::at(load_up_to<V>(gate + i, n - i));
      const V u = load_up_to<V>(up + i, n - i);
      store_up_to(y + i, f.value * u, n - i);
      if constexpr (slopes) {
        store_up_to(gate + i, f.slope * u, n - i);
        store_up_to(up + i, f.value, n - i);
      }
    }
  }
};

/// ActivationLoops<Float16>::forward, for processors with AVX-512.
void activation_loop_avx512(Activation activation, DType dtype, bool slopes, void* y, void* h, void* up, int64_t n,
                            float limit);

}  // namespace llmtrain::host
