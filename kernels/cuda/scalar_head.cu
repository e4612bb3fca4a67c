#include "kernels/cuda/launch.cuh"
#include "kernels/scalar_head.hpp"

namespace llmtrain {

namespace {

using cuda::lane;
using cuda::warp_lanes;

/// An output of a row by a warp.
template <class T>
struct ScoreRow {
  float* out;
  const T *x, *w, *bias;
  const float* weights;
  int64_t columns, outputs;
  __device__ void operator()(int64_t e) const {
    const int64_t i = e / outputs, k = e % outputs;
    double sum = 0;
    if (weights[i] != 0) {
      for (int64_t c = lane(); c < columns; c += warp_lanes) {
        sum +=
            static_cast<double>(cuda::load(x + i * columns + c)) * static_cast<double>(cuda::load(w + k * columns + c));
      }
      sum = cuda::warp_sum(sum);
      if (bias != nullptr) sum += static_cast<double>(cuda::load(bias + k));
    }
    if (lane() == 0) out[e] = static_cast<float>(sum);
  }
};

/// A column of an output by a thread. Threads of a warp skip the same rows, but where outputs begin.
template <class T>
struct SumColumn {
  float* dw;
  const float* dout;
  const T* x;
  int64_t rows, columns, outputs;
  bool accumulate;
  __device__ void operator()(int64_t e) const {
    const int64_t k = e / columns, c = e % columns;
    double sum = 0;
    for (int64_t i = 0; i < rows; ++i) {
      const float factor = dout[i * outputs + k];
      if (factor == 0) continue;
      sum += static_cast<double>(factor) * static_cast<double>(cuda::load(x + i * columns + c));
    }
    const auto value = static_cast<float>(sum);
    dw[e] = accumulate ? dw[e] + value : value;
  }
};

/// An output by a thread.
struct SumOutput {
  float* db;
  const float* dout;
  int64_t rows, outputs;
  bool accumulate;
  __device__ void operator()(int64_t k) const {
    double sum = 0;
    for (int64_t i = 0; i < rows; ++i) sum += static_cast<double>(dout[i * outputs + k]);
    db[k] = accumulate ? db[k] + static_cast<float>(sum) : static_cast<float>(sum);
  }
};

template <class T>
struct SpreadScore {
  T* dx;
  const float* dout;
  const T* w;
  int64_t columns, outputs;
  bool accumulate;
  __device__ void operator()(int64_t e) const {
    const int64_t i = e / columns, c = e % columns;
    float sum = accumulate ? cuda::load(dx + e) : 0.0F;
    for (int64_t k = 0; k < outputs; ++k) sum = fmaf(dout[i * outputs + k], cuda::load(w + k * columns + c), sum);
    cuda::store(dx + e, sum);
  }
};

}  // namespace

void scalar_head_forward(const Tensor& out, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& weights,
                         Stream& stream) {
  const int64_t columns = x.dim(1);
  cuda::dispatch(x, [&]<class T>(T* rows) {
    cuda::for_each_warp(out.numel(), stream,
                        ScoreRow<T>{out.as<float>(), rows, w.as<const T>(), bias.empty() ? nullptr : bias.as<const T>(),
                                    weights.as<const float>(), columns, w.numel() / columns});
  });
}

void scalar_head_backward_weight(const Tensor& dw, const Tensor& dout, const Tensor& x, bool accumulate,
                                 Stream& stream) {
  const int64_t columns = x.dim(1);
  cuda::dispatch(x, [&]<class T>(T* rows) {
    cuda::for_each(dw.numel(), stream,
                   SumColumn<T>{dw.as<float>(), dout.as<const float>(), rows, x.dim(0), columns, dw.numel() / columns,
                                accumulate});
  });
}

void scalar_head_backward_bias(const Tensor& db, const Tensor& dout, bool accumulate, Stream& stream) {
  const int64_t outputs = db.numel();
  cuda::for_each(outputs, stream,
                 SumOutput{db.as<float>(), dout.as<const float>(), dout.numel() / outputs, outputs, accumulate});
}

void scalar_head_backward_input(const Tensor& dx, const Tensor& dout, const Tensor& w, bool accumulate,
                                Stream& stream) {
  const int64_t columns = dx.dim(1);
  cuda::dispatch(dx, [&]<class T>(T* rows) {
    cuda::for_each(
        dx.numel(), stream,
        SpreadScore<T>{rows, dout.as<const float>(), w.as<const T>(), columns, w.numel() / columns, accumulate});
  });
}

}  // namespace llmtrain
