#include "kernels/activation.hpp"

#include "kernels/host/element.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/special_functions.hpp"

namespace llmtrain {

namespace {

using namespace host;

/// value(x) and slope(x) = d value / dx of each function.
struct Gelu {
  static Float8 value(Float8 x) { return x * fast_normal_cdf(x); }
  static Float8 slope(Float8 x) {
    const Float8 density = 0.398942280f * fast_exp(-0.5f * x * x);
    return fused(x, density, fast_normal_cdf(x));
  }
};

/// 0.5 x (1 + tanh u) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
  static Float8 twice_u(Float8 x) { return 1.59576912f * x * fused(0.044715f * x, x, 1.0f); }
  static Float8 value(Float8 x) { return x * fast_sigmoid(twice_u(x)); }
  static Float8 slope(Float8 x) {
    const Float8 s = fast_sigmoid(twice_u(x));
    const Float8 derivative = 1.59576912f * fused(0.134145f * x, x, 1.0f);  // of 2 u
    return fused(x * derivative, s * (1.0f - s), s);
  }
};

struct Relu {
  static Float8 value(Float8 x) { return x <= Float8{} ? Float8{} : x; }  // NaN passes
  static Float8 slope(Float8 x) { return x <= Float8{} ? Float8{} : Float8{} + 1.0f; }
};

struct Silu {
  static Float8 value(Float8 x) { return x * fast_sigmoid(x); }
  static Float8 slope(Float8 x) {
    const Float8 s = fast_sigmoid(x);
    return fused(x * s, 1.0f - s, s);
  }
};

template <class T>
void store_up_to(T* p, Float8 v, int64_t count) {
  if (count >= 8) {
    store8(p, v);
    return;
  }
  for (int64_t i = 0; i < count; ++i) store(p + i, v[i]);
}

/// step(i, n) for elements i .. i + n - 1, n <= 8: the rest of a row takes the same path as whole vectors.
template <class Step>
void by_eights(int64_t begin, int64_t end, const Step& step) {
  int64_t i = begin;
  for (; i + 8 <= end; i += 8) step(i, int64_t{8});
  if (i < end) step(i, end - i);
}

template <class F, class T>
void plain_forward(T* y, const T* h, int64_t n) {
  parallel_blocks(n, elementwise_block, [=](int64_t begin, int64_t end) {
    by_eights(begin, end, [=](int64_t i, int64_t k) { store_up_to(y + i, F::value(load_up_to(h + i, k)), k); });
  });
}

template <class F, class T>
void plain_backward(T* dh, const T* dy, const T* h, int64_t n) {
  parallel_blocks(n, elementwise_block, [=](int64_t begin, int64_t end) {
    by_eights(begin, end, [=](int64_t i, int64_t k) {
      store_up_to(dh + i, load_up_to(dy + i, k) * F::slope(load_up_to(h + i, k)), k);
    });
  });
}

template <class F, class T>
void gated_forward(T* y, const T* h, int64_t rows, int64_t width) {
  parallel_for(rows, [=](int64_t r) {
    const T* gate = h + r * 2 * width;
    const T* up = gate + width;
    T* out = y + r * width;
    by_eights(0, width, [=](int64_t i, int64_t k) {
      store_up_to(out + i, F::value(load_up_to(gate + i, k)) * load_up_to(up + i, k), k);
    });
  });
}

template <class F, class T>
void gated_backward(T* dh, const T* dy, const T* h, int64_t rows, int64_t width) {
  parallel_for(rows, [=](int64_t r) {
    const T* gate = h + r * 2 * width;
    const T* up = gate + width;
    T* dgate = dh + r * 2 * width;
    T* dup = dgate + width;
    const T* d = dy + r * width;
    by_eights(0, width, [=](int64_t i, int64_t k) {
      const Float8 g = load_up_to(gate + i, k);
      const Float8 u = load_up_to(up + i, k);
      const Float8 out = load_up_to(d + i, k);
      store_up_to(dgate + i, out * u * F::slope(g), k);
      store_up_to(dup + i, out * F::value(g), k);
    });
  });
}

/// f(Function{}) with the function of an activation.
template <class F>
void with_function(Activation activation, const F& f) {
  switch (activation) {
    case Activation::gelu:
    case Activation::geglu:
      return f(Gelu{});
    case Activation::gelu_tanh:
    case Activation::geglu_tanh:
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
