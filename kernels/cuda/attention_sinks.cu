#include "core/profile.hpp"
#include "kernels/attention_sinks.hpp"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/launch.cuh"

namespace llmtrain {

namespace {

using namespace cuda;

/// A row and head, by a warp.
template <class T, class S>
struct AddSink {
  T* out;
  float* lse;
  const S* logits;
  int64_t rows, heads, width;
  __device__ void operator()(int64_t item) const {
    const int64_t row = item / heads, h = item % heads;
    float* log = lse + h * rows + row;
    const sinks::Share share = sinks::share(*log, load(logits + h));
    __syncwarp();  // all lanes have read it
    T* head = out + item * width;
    for (int64_t d = lane(); d < width; d += warp_lanes) store(head + d, share.factor * load(head + d));
    if (lane() == 0) *log = share.lse;
  }
};

template <class T, class S>
struct SinkSlope {
  const T *out, *dout;
  const float* lse;
  const S* logits;
  int64_t first_row, tokens, heads, width;
  __device__ void operator()(int64_t row, int64_t head, float (&sums)[1]) const {
    const int64_t begin = (row * heads + head) * width;
    float product = 0;
    for (int64_t d = begin; d < begin + width; ++d) product = fmaf(load(out + d), load(dout + d), product);
    sums[0] -= expf(load(logits + head) - lse[head * tokens + first_row + row]) * product;
  }
};

}  // namespace

void add_attention_sinks(const Tensor& out, const Tensor& lse, const Tensor& sinks, Stream& stream) {
  const ProfileSpan span("add_attention_sinks", [&] { return traffic({&out, &out, &lse, &lse}); });
  check_sinks(out, lse, sinks);
  const int64_t rows = out.dim(0), heads = sinks.numel(), width = out.dim(1) / heads;
  LLMTRAIN_CHECK(lse.numel() == heads * rows, "lse and out have the same rows");
  dispatch(sinks, [&]<class S>(S* logits) {
    dispatch(out, [&]<class T>(T* values) {
      for_each_warp(rows * heads, stream, AddSink<T, S>{values, lse.as<float>(), logits, rows, heads, width});
    });
  });
}

void attention_sinks_backward(const AttentionSinksBackward& a, Stream& stream) {
  const ProfileSpan span("attention_sinks_backward", [&] { return traffic({&a.dout, &a.out}); });
  check_sinks(a.out, a.lse, a.sinks);
  LLMTRAIN_CHECK(a.dout.dtype == a.out.dtype && a.dout.shape == a.out.shape, "dout is like out");
  const int64_t heads = a.sinks.numel(), width = a.out.dim(1) / heads;
  dispatch(a.sinks, [&]<class S>(S* logits) {
    dispatch(a.out, [&]<class T>(T* out) {
      column_sums<1>(a.out.dim(0), heads, {a.dsinks.as<float>()}, a.accumulate, stream,
                     SinkSlope<T, S>{out, static_cast<const T*>(a.dout.data), a.lse.as<float>(), logits, a.first_row,
                                     a.lse.numel() / heads, heads, width});
    });
  });
}

}  // namespace llmtrain
