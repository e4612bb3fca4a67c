#include "kernels/cuda/launch.cuh"
#include "kernels/documents.hpp"

namespace llmtrain {

namespace {

using cuda::lane;
using cuda::warp_lanes;

/// By a warp.
struct SumDocument {
  double* out;
  const float *values, *factors;
  const int32_t* borders;
  __device__ void operator()(int64_t d) const {
    const int64_t begin = borders[d], end = borders[d + 1];
    double sum = 0;
    for (int64_t i = begin + lane(); i < end; i += warp_lanes) {
      sum += static_cast<double>(values[i]) * static_cast<double>(factors[i]);
    }
    sum = cuda::warp_sum(sum);
    if (lane() == 0) out[d] = sum;
  }
};

/// Rows of document d, by a warp; rows after the last document for d = D.
struct SpreadDocument {
  float* out;
  const float *by_document, *by_row, *scale;
  const int32_t* borders;
  int64_t documents, rows;
  __device__ void operator()(int64_t d) const {
    const int64_t begin = borders[d], end = d < documents ? borders[d + 1] : rows;
    const float factor = d < documents ? by_document[d] * (scale != nullptr ? *scale : 1.0f) : 0.0f;
    for (int64_t i = begin + lane(); i < end; i += warp_lanes) out[i] = d < documents ? factor * by_row[i] : 0.0f;
  }
};

}  // namespace

void sum_documents(const Tensor& sums, const Tensor& x, const Tensor& weights, const Tensor& segments, Stream& stream) {
  cuda::for_each_warp(sums.numel(), stream,
                      SumDocument{sums.as<double>(), x.as<float>(), weights.as<float>(), segments.as<int32_t>()});
}

void spread_documents(const Tensor& out, const Tensor& factors, const Tensor& weights, const Tensor& segments,
                      const Tensor& scale, Stream& stream) {
  const int64_t documents = factors.numel();
  cuda::for_each_warp(
      documents + 1, stream,
      SpreadDocument{out.as<float>(), factors.as<float>(), weights.as<float>(),
                     scale.empty() ? nullptr : scale.as<float>(), segments.as<int32_t>(), documents, out.numel()});
}

}  // namespace llmtrain
