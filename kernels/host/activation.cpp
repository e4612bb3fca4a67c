#include "kernels/activation.hpp"

#include "core/profile.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/special_functions.hpp"

namespace llmtrain {

namespace {

using namespace host;

struct ValueAndSlope {
  Float8 value;
  Float8 slope;  ///< d value / dx
};

struct Gelu {
  static ValueAndSlope at(Float8 x) {
    Float8 density;
    const Float8 distribution = fast_normal_cdf_and_density(x, density);
    return {x * distribution, fused(x, density, distribution)};
  }
};

/// 0.5 x (1 + tanh u) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
  static ValueAndSlope at(Float8 x) {
    const Float8 s = fast_sigmoid(1.59576912f * x * fused(0.044715f * x, x, 1.0f));
    const Float8 derivative = 1.59576912f * fused(0.134145f * x, x, 1.0f);  // of 2 u
    return {x * s, fused(x * derivative, s * (1.0f - s), s)};
  }
};

struct Relu {  // NaN passes
  static ValueAndSlope at(Float8 x) {
    return {x <= Float8{} ? Float8{} : x, x <= Float8{} ? Float8{} : Float8{} + 1.0f};
  }
};

struct Silu {
  static ValueAndSlope at(Float8 x) {
    const Float8 s = fast_sigmoid(x);
    return {x * s, fused(x * s, 1.0f - s, s)};
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

/// Slopes: whether h becomes the derivatives. y has the same bits either way.
template <class F, bool Slopes, class T>
void plain_forward(T* y, T* h, int64_t n) {
  parallel_blocks(n, elementwise_block, [=](int64_t begin, int64_t end) {
    by_eights(begin, end, [=](int64_t i, int64_t k) {
      const ValueAndSlope f = F::at(load_up_to(h + i, k));
      store_up_to(y + i, f.value, k);
      if constexpr (Slopes) store_up_to(h + i, f.slope, k);
    });
  });
}

template <class F, bool Slopes, class T>
void gated_forward(T* y, T* h, int64_t rows, int64_t width) {
  parallel_for(rows, [=](int64_t r) {
    T* gate = h + r * 2 * width;
    T* up = gate + width;
    T* out = y + r * width;
    by_eights(0, width, [=](int64_t i, int64_t k) {
      const ValueAndSlope f = F::at(load_up_to(gate + i, k));
      const Float8 u = load_up_to(up + i, k);
      store_up_to(out + i, f.value * u, k);
      if constexpr (Slopes) {
        store_up_to(gate + i, f.slope * u, k);
        store_up_to(up + i, f.value, k);
      }
    });
  });
}

template <class T>
void plain_backward(T* dh, const T* dy, const T* slope, int64_t n) {
  parallel_blocks(n, elementwise_block, [=](int64_t begin, int64_t end) {
    by_eights(begin, end,
              [=](int64_t i, int64_t k) { store_up_to(dh + i, load_up_to(dy + i, k) * load_up_to(slope + i, k), k); });
  });
}

template <class T>
void gated_backward(T* dh, const T* dy, const T* slope, int64_t rows, int64_t width) {
  parallel_for(rows, [=](int64_t r) {
    const T* d = dy + r * width;
    for (int64_t half : {r * 2 * width, r * 2 * width + width}) {
      by_eights(0, width, [=](int64_t i, int64_t k) {
        store_up_to(dh + half + i, load_up_to(d + i, k) * load_up_to(slope + half + i, k), k);
      });
    }
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

template <bool Slopes>
void forward(Activation activation, const Tensor& y, const Tensor& h) {
  LLMTRAIN_CHECK(y.dtype == h.dtype && y.rank == 2 && h.rank == 2 && y.dim(0) == h.dim(0) &&
                     h.dim(1) == (is_gated(activation) ? 2 : 1) * y.dim(1),
                 "activation: y [N, F] and h [N, F] (gated: [N, 2 F]) of one dtype");
  host::dispatch(y.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    with_function(activation, [&](auto function) {
      using F = decltype(function);
      if (is_gated(activation)) {
        gated_forward<F, Slopes>(y.as<T>(), h.as<T>(), y.dim(0), y.dim(1));
      } else {
        plain_forward<F, Slopes>(y.as<T>(), h.as<T>(), y.numel());
      }
    });
  });
}

}  // namespace

void activation_forward(Activation activation, const Tensor& y, const Tensor& h, Stream&) {
  const ProfileSpan span("activation_forward", [&] { return traffic({&y, &h, &h}); });
  forward<true>(activation, y, h);
}

void activation_value(Activation activation, const Tensor& y, const Tensor& h, Stream&) {
  const ProfileSpan span("activation_value", [&] { return traffic({&y, &h}); });
  forward<false>(activation, y, h);
}

void activation_backward(const Tensor& dh, const Tensor& dy, const Tensor& slope, Stream&) {
  const ProfileSpan span("activation_backward", [&] { return traffic({&dh, &dy, &slope}); });
  const bool gated = slope.rank == 2 && dy.rank == 2 && slope.dim(1) == 2 * dy.dim(1);
  LLMTRAIN_CHECK(dy.dtype == slope.dtype && dh.dtype == slope.dtype && dh.shape == slope.shape && dy.rank == 2 &&
                     dy.dim(0) == slope.dim(0) && (gated || dy.dim(1) == slope.dim(1)),
                 "activation: dy [N, F], and dh and slope [N, F] (gated: [N, 2 F]) of one dtype");
  host::dispatch(dy.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    if (gated) {
      gated_backward(dh.as<T>(), dy.as<T>(), slope.as<T>(), dy.dim(0), dy.dim(1));
    } else {
      plain_backward(dh.as<T>(), dy.as<T>(), slope.as<T>(), dy.numel());
    }
  });
}

}  // namespace llmtrain
