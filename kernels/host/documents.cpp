#include "kernels/documents.hpp"

#include <algorithm>
#include <array>

#include "kernels/host/parallel.hpp"

namespace llmtrain {

void sum_documents(const Tensor& sums, const Tensor& x, const Tensor& weights, const Tensor& segments,
                   Stream& /*stream*/) {
  constexpr int64_t lanes = 32;
  double* out = sums.as<double>();
  const float *values = x.as<float>(), *factors = weights.as<float>();
  const int32_t* borders = segments.as<int32_t>();
  host::parallel_for(sums.numel(), [=](int64_t d) {
    std::array<double, lanes> sum{};
    for (int64_t i = borders[d]; i < borders[d + 1]; ++i) {
      sum[static_cast<size_t>((i - borders[d]) % lanes)] +=
          static_cast<double>(values[i]) * static_cast<double>(factors[i]);
    }
    for (size_t distance = lanes / 2; distance > 0; distance /= 2) {
      for (size_t lane = 0; lane < distance; ++lane) sum[lane] += sum[lane + distance];
    }
    out[d] = sum[0];
  });
}

void spread_documents(const Tensor& out, const Tensor& factors, const Tensor& weights, const Tensor& segments,
                      const Tensor& scale, Stream& /*stream*/) {
  const float common = scale.empty() ? 1.0f : *scale.as<float>();
  float* to = out.as<float>();
  const float *by_document = factors.as<float>(), *by_row = weights.as<float>();
  const int32_t* borders = segments.as<int32_t>();
  host::parallel_for(factors.numel(), [=](int64_t d) {
    const float factor = by_document[d] * common;
    for (int64_t i = borders[d]; i < borders[d + 1]; ++i) to[i] = factor * by_row[i];
  });
  std::fill(to + borders[factors.numel()], to + out.numel(), 0.0f);
}

}  // namespace llmtrain
