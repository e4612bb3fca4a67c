#include "kernels/activation.hpp"

#include "kernels/host/element.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/special_functions.hpp"

namespace llmtrain {

namespace {

using host::fast_exp;
using host::fast_normal_cdf;
using host::fast_sigmoid;

/// value(x) and slope(x) = d value / dx of each function.
struct Gelu {
  static float value(float x) { return x * fast_normal_cdf(x); }
  static float slope(float x) {
    const float density = 0.398942280f * fast_exp(-0.5f * x * x);
    return std::fma(x, density, fast_normal_cdf(x));
  }
};

/// 0.5 x (1 + tanh u) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
  static float twice_u(float x) { return 1.59576912f * x * std::fma(0.044715f * x, x, 1.0f); }
  static float value(float x) { return x * fast_sigmoid(twice_u(x)); }
  static float slope(float x) {
    const float s = fast_sigmoid(twice_u(x));
    const float derivative = 1.59576912f * std::fma(0.134145f * x, x, 1.0f);  // of 2 u
    return std::fma(x * derivative, s * (1.0f - s), s);
  }
};

struct Relu {
  static float value(float x) { return x <= 0.0f ? 0.0f : x; }  // NaN passes
  static float slope(float x) { return x <= 0.0f ? 0.0f : 1.0f; }
};

struct Silu {
  static float value(float x) { return x * fast_sigmoid(x); }
  static float slope(float x) {
    const float s = fast_sigmoid(x);
    return std::fma(x * s, 1.0f - s, s);
  }
};

template <class F, class T>
void plain_forward(T* y, const T* h, int64_t n) {
  host::parallel_blocks(n, host::elementwise_block, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) host::store(y + i, F::value(host::load(h + i)));
  });
}

template <class F, class T>
void plain_backward(T* dh, const T* dy, const T* h, int64_t n) {
  host::parallel_blocks(n, host::elementwise_block, [=](int64_t begin, int64_t end) {
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) host::store(dh + i, host::load(dy + i) * F::slope(host::load(h + i)));
  });
}

template <class F, class T>
void gated_forward(T* y, const T* h, int64_t rows, int64_t width) {
  host::parallel_for(rows, [=](int64_t r) {
    const T* gate = h + r * 2 * width;
    const T* up = gate + width;
    T* out = y + r * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) host::store(out + i, F::value(host::load(gate + i)) * host::load(up + i));
  });
}

template <class F, class T>
void gated_backward(T* dh, const T* dy, const T* h, int64_t rows, int64_t width) {
  host::parallel_for(rows, [=](int64_t r) {
    const T* gate = h + r * 2 * width;
    const T* up = gate + width;
    T* dgate = dh + r * 2 * width;
    T* dup = dgate + width;
    const T* d = dy + r * width;
#pragma omp simd
    for (int64_t i = 0; i < width; ++i) {
      const float g = host::load(gate + i);
      const float u = host::load(up + i);
      const float out = host::load(d + i);
      host::store(dgate + i, out * u * F::slope(g));
      host::store(dup + i, out * F::value(g));
    }
  });
}

/// f(Function{}) with the scalar function of an activation.
template <class F>
void with_function(Activation activation, const F& f) {
  switch (activation) {
    case Activation::gelu:
    case Activation::geglu:
      return f(Gelu{});
    case Activation::gelu_tanh:
      return f(GeluTanh{});
    case Activation::relu:
      return f(Relu{});
    case Activation::silu:
    case Activation::swiglu:
      return f(Silu{});
  }
}

void check_shapes(Activation activation, const Tensor& y, const Tensor& h) {
  LLMTRAIN_CHECK(y.dtype == h.dtype && y.rank == 2 && h.rank == 2 && y.dim(0) == h.dim(0) &&
                     h.dim(1) == (is_gated(activation) ? 2 : 1) * y.dim(1),
                 "activation: y [N, F] and h [N, F] (gated: [N, 2 F]) of one dtype");
}

}  // namespace

void activation_forward(Activation activation, const Tensor& y, const Tensor& h, Stream&) {
  check_shapes(activation, y, h);
  host::dispatch(y.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    with_function(activation, [&](auto function) {
      using F = decltype(function);
      if (is_gated(activation)) {
        gated_forward<F>(y.as<T>(), h.as<T>(), y.dim(0), y.dim(1));
      } else {
        plain_forward<F>(y.as<T>(), h.as<T>(), y.numel());
      }
    });
  });
}

void activation_backward(Activation activation, const Tensor& dh, const Tensor& dy, const Tensor& h, Stream&) {
  check_shapes(activation, dy, h);
  check_shapes(activation, dy, dh);
  host::dispatch(dy.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    with_function(activation, [&](auto function) {
      using F = decltype(function);
      if (is_gated(activation)) {
        gated_backward<F>(dh.as<T>(), dy.as<T>(), h.as<T>(), dy.dim(0), dy.dim(1));
      } else {
        plain_backward<F>(dh.as<T>(), dy.as<T>(), h.as<T>(), dy.numel());
      }
    });
  });
}

}  // namespace llmtrain
