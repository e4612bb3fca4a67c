#include "kernels/cuda/launch.cuh"
#include "kernels/scalar_head.hpp"

namespace llmtrain {

namespace {

using cuda::lane;
using cuda::warp_lanes;

/// A row by a warp.
template <class T>
struct ScoreRow {
  float* out;
  const T *x, *w;
  const float* weights;
  int64_t columns;
  __device__ void operator()(int64_t i) const {
    double sum = 0;
    if (weights[i] != 0) {
      for (int64_t c = lane(); c < columns; c += warp_lanes) {
        sum += static_cast<double>(cuda::load(x + i * columns + c)) * static_cast<double>(cuda::load(w + c));
      }
      sum = cuda::warp_sum(sum);
    }
    if (lane() == 0) out[i] = static_cast<float>(sum);
  }
};

/// A column by a thread. All threads of a warp skip the same rows.
template <class T>
struct SumColumn {
  float* dw;
  const float* dout;
  const T* x;
  int64_t rows, columns;
  bool accumulate;
  __device__ void operator()(int64_t c) const {
    double sum = 0;
    for (int64_t i = 0; i < rows; ++i) {
      const float factor = dout[i];
      if (factor == 0) continue;
      sum += static_cast<double>(factor) * static_cast<double>(cuda::load(x + i * columns + c));
    }
    const auto value = static_cast<float>(sum);
    dw[c] = accumulate ? dw[c] + value : value;
  }
};

template <class T>
struct SpreadScore {
  T* dx;
  const float* dout;
  const T* w;
  int64_t columns;
  bool accumulate;
  __device__ void operator()(int64_t e) const {
    cuda::store(dx + e, fmaf(dout[e / columns], cuda::load(w + e % columns), accumulate ? cuda::load(dx + e) : 0.0F));
  }
};

}  // namespace

void scalar_head_forward(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& weights, Stream& stream) {
  cuda::dispatch(x, [&]<class T>(T* rows) {
    cuda::for_each_warp(out.numel(), stream,
                        ScoreRow<T>{out.as<float>(), rows, w.as<const T>(), weights.as<const float>(), w.numel()});
  });
}

void scalar_head_backward_weight(const Tensor& dw, const Tensor& dout, const Tensor& x, bool accumulate,
                                 Stream& stream) {
  cuda::dispatch(x, [&]<class T>(T* rows) {
    cuda::for_each(dw.numel(), stream,
                   SumColumn<T>{dw.as<float>(), dout.as<const float>(), rows, dout.numel(), dw.numel(), accumulate});
  });
}

void scalar_head_backward_input(const Tensor& dx, const Tensor& dout, const Tensor& w, bool accumulate,
                                Stream& stream) {
  cuda::dispatch(dx, [&]<class T>(T* rows) {
    cuda::for_each(dout.numel() * w.numel(), stream,
                   SpreadScore<T>{rows, dout.as<const float>(), w.as<const T>(), w.numel(), accumulate});
  });
}

}  // namespace llmtrain
