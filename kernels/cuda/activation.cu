#include <limits>

#include "core/profile.hpp"
#include "kernels/activation.hpp"
#include "kernels/cuda/launch.cuh"

namespace llmtrain {

namespace {

using namespace cuda;

struct ValueAndSlope {
  float value;
  float slope;  ///< d value / dx
};

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

struct Gelu {
  __device__ static ValueAndSlope at(float x) {
    // 1 + erf would lose small values to cancellation.
    const float distribution = 0.5f * erfcf(-0.707106781f * x), density = 0.398942280f * expf(-0.5f * x * x);
    return {x * distribution, fmaf(x, density, distribution)};
  }
};

/// 0.5 x (1 + tanh u) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
  __device__ static ValueAndSlope at(float x) {
    const float s = sigmoid(1.59576912f * x * fmaf(0.044715f * x, x, 1.0f));
    const float derivative = 1.59576912f * fmaf(0.134145f * x, x, 1.0f);  // of 2 u
    return {x * s, fmaf(x * derivative, s * (1.0f - s), s)};
  }
};

struct Relu {  // propagates NaN
  __device__ static ValueAndSlope at(float x) { return {x <= 0.0f ? 0.0f : x, x <= 0.0f ? 0.0f : 1.0f}; }
};

struct Silu {
  __device__ static ValueAndSlope at(float x) {
    const float s = sigmoid(x);
    return {x * s, fmaf(x * s, 1.0f - s, s)};
  }
};

/// swiglu_oai; propagates NaN.
struct LimitedSwiglu {
  float most;

  struct Result {
    float value, gate_slope, up_slope;
  };
  __device__ Result at(float x, float u) const {
    const float g = x > most ? most : x, factor = (u > most ? most : u < -most ? -most : u) + 1.0f;
    const float s = sigmoid(swiglu_oai_alpha * g), f = g * s;
    const float slope = fmaf(swiglu_oai_alpha * f, 1.0f - s, s) * factor;
    return {f * factor, x > most ? 0.0f : slope, u > most || u < -most ? 0.0f : f};
  }
};

/// Rows of y and of h or its derivatives, accessed 16 bytes at a time. Without a gate there are no row borders:
/// everything is one row.
struct Rows {
  bool gated;
  int64_t rows, width;

  Rows(const Tensor& y, bool with_gate)
      : gated(with_gate), rows(gated ? y.dim(0) : 1), width(gated ? y.dim(1) : y.numel()) {}
  template <class T>
  LLMTRAIN_HOST_DEVICE int64_t packs() const {
    return (width + wide<T> - 1) / wide<T>;
  }
};

/// Slopes: true if h is overwritten by the derivatives.
template <class F, bool slopes, class T>
struct ForwardPack {
  Rows of;
  T *y, *h;

  __device__ void operator()(int64_t i) const {
    constexpr int64_t size = wide<T>;
    const int64_t row = i / of.packs<T>(), at = i % of.packs<T>() * size;
    T *gate = h + row * of.width * (of.gated ? 2 : 1), *up = gate + of.width;
    PackOf<size> x = load_pack<size>(gate, at, of.width), u;
    if (of.gated) u = load_pack<size>(up, at, of.width);
    PackOf<size> value;
    for (int k = 0; k < size; ++k) {
      const ValueAndSlope f = F::at(x.v[k]);
      value.v[k] = of.gated ? f.value * u.v[k] : f.value;
      x.v[k] = of.gated ? f.slope * u.v[k] : f.slope;
      u.v[k] = f.value;
    }
    store_pack(y + row * of.width, at, of.width, value);
    if constexpr (slopes) {
      store_pack(gate, at, of.width, x);
      if (of.gated) store_pack(up, at, of.width, u);
    }
  }
};

template <bool slopes, class T>
struct LimitedPack {
  Rows of;
  T *y, *h;
  LimitedSwiglu function;

  __device__ void operator()(int64_t i) const {
    constexpr int64_t size = wide<T>;
    const int64_t row = i / of.packs<T>(), at = i % of.packs<T>() * size;
    T *gate = h + row * of.width * 2, *up = gate + of.width;
    PackOf<size> x = load_pack<size>(gate, at, of.width), u = load_pack<size>(up, at, of.width), value;
    for (int k = 0; k < size; ++k) {
      const LimitedSwiglu::Result r = function.at(x.v[k], u.v[k]);
      value.v[k] = r.value;
      x.v[k] = r.gate_slope;
      u.v[k] = r.up_slope;
    }
    store_pack(y + row * of.width, at, of.width, value);
    if constexpr (slopes) {
      store_pack(gate, at, of.width, x);
      store_pack(up, at, of.width, u);
    }
  }
};

template <class T>
struct BackwardPack {
  Rows of;
  T* dh;
  const T *dy, *slope;

  __device__ void operator()(int64_t i) const {
    constexpr int64_t size = wide<T>;
    const int64_t row = i / of.packs<T>(), at = i % of.packs<T>() * size;
    const PackOf<size> d = load_pack<size>(dy + row * of.width, at, of.width);
    const int halves = of.gated ? 2 : 1;
    for (int half = 0; half < halves; ++half) {
      const int64_t begin = (row * halves + half) * of.width;
      PackOf<size> s = load_pack<size>(slope + begin, at, of.width);
      for (int k = 0; k < size; ++k) s.v[k] *= d.v[k];
      store_pack(dh + begin, at, of.width, s);
    }
  }
};

template <class F, bool slopes>
void forward(const Tensor& y, const Tensor& h, const Rows& of, Stream& stream) {
  dispatch(y, [&]<class T>(T* to) {
    for_each(of.rows * of.packs<T>(), stream, ForwardPack<F, slopes, T>{of, to, h.as<T>()});
  });
}

template <bool slopes>
void limited(const Tensor& y, const Tensor& h, const Rows& of, float limit, Stream& stream) {
  const LimitedSwiglu function{limit > 0 ? limit : std::numeric_limits<float>::infinity()};
  dispatch(y, [&]<class T>(T* to) {
    for_each(of.rows * of.packs<T>(), stream, LimitedPack<slopes, T>{of, to, h.as<T>(), function});
  });
}

template <bool slopes>
void forward(Activation activation, const Tensor& y, const Tensor& h, Stream& stream, float limit) {
  const bool gated = is_gated(activation);
  LLMTRAIN_CHECK(is_compute_type(y.dtype) && y.dtype == h.dtype && y.rank == 2 && h.rank == 2 && y.dim(0) == h.dim(0) &&
                     h.dim(1) == (gated ? 2 : 1) * y.dim(1),
                 "activation: y [N, F] and h [N, F] (gated: [N, 2 F]) of one dtype: fp32, bf16 or fp16");
  const Rows of(y, gated);
  switch (activation) {
    case Activation::gelu:
    case Activation::geglu:
      return forward<Gelu, slopes>(y, h, of, stream);
    case Activation::gelu_tanh:
    case Activation::geglu_tanh:
      return forward<GeluTanh, slopes>(y, h, of, stream);
    case Activation::relu:
      return forward<Relu, slopes>(y, h, of, stream);
    case Activation::silu:
    case Activation::swiglu:
      return forward<Silu, slopes>(y, h, of, stream);
    case Activation::swiglu_oai:
      return limited<slopes>(y, h, of, limit, stream);
  }
}

}  // namespace

void activation_forward(Activation activation, const Tensor& y, const Tensor& h, Stream& stream, float limit) {
  const ProfileSpan span("activation_forward", [&] { return traffic({&y, &h, &h}); });
  forward<true>(activation, y, h, stream, limit);
}

void activation_value(Activation activation, const Tensor& y, const Tensor& h, Stream& stream, float limit) {
  const ProfileSpan span("activation_value", [&] { return traffic({&y, &h}); });
  forward<false>(activation, y, h, stream, limit);
}

void activation_backward(const Tensor& dh, const Tensor& dy, const Tensor& slope, Stream& stream) {
  const ProfileSpan span("activation_backward", [&] { return traffic({&dh, &dy, &slope}); });
  const bool gated = slope.rank == 2 && dy.rank == 2 && slope.dim(1) == 2 * dy.dim(1);
  LLMTRAIN_CHECK(dy.dtype == slope.dtype && dh.dtype == slope.dtype && dh.shape == slope.shape && dy.rank == 2 &&
                     dy.dim(0) == slope.dim(0) && (gated || dy.dim(1) == slope.dim(1)),
                 "activation: dy [N, F], and dh and slope [N, F] (gated: [N, 2 F]) of one dtype");
  const Rows of(dy, gated);
  dispatch(dy, [&]<class T>(T* d) {
    for_each(of.rows * of.packs<T>(), stream, BackwardPack<T>{of, dh.as<T>(), d, slope.as<T>()});
  });
}

}  // namespace llmtrain
