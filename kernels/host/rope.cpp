#include "kernels/rope.hpp"

#include <cmath>

#include "kernels/host/element.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

using namespace host;

void rope_table(const Tensor& table, const double* inverse_frequencies, Stream& /*stream*/) {
  const int64_t positions = table.dim(0), half = table.dim(1) / 2;
  float* out = table.as<float>();
  parallel_for(positions, [&](int64_t p) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * inverse_frequencies[i];
      out[p * 2 * half + i] = static_cast<float>(std::cos(angle));
      out[p * 2 * half + half + i] = static_cast<float>(std::sin(angle));
    }
  });
}

void rope_apply(const Tensor& qkv, const Tensor& table, const Tensor& positions, int64_t rotated_heads,
                int64_t head_dim, bool inverse, Stream& /*stream*/) {
  const int64_t rows = qkv.dim(0), width = qkv.dim(1), half = head_dim / 2;
  LLMTRAIN_CHECK(
      head_dim % 2 == 0 && table.dim(1) == head_dim && positions.numel() == rows && rotated_heads * head_dim <= width,
      "shapes of rope");
  const float* cos_sin = table.as<float>();
  const int32_t* place = positions.as<int32_t>();
  const float sign = inverse ? -1.0f : 1.0f;
  constexpr int64_t rows_per_task = 16;
  dispatch(qkv.dtype, [&](auto* tag) {
    auto* values = static_cast<decltype(tag)>(qkv.data);
    parallel_blocks(rows, rows_per_task, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* cosine = cos_sin + place[r] * head_dim;
        const float* sine = cosine + half;
        for (int64_t h = 0; h < rotated_heads; ++h) {
          auto* low = values + r * width + h * head_dim;
          auto* high = low + half;
#pragma omp simd
          for (int64_t i = 0; i < half; ++i) {
            const float a = load(low + i), b = load(high + i), s = sign * sine[i];
            store(low + i, std::fma(a, cosine[i], -(b * s)));
            store(high + i, std::fma(b, cosine[i], a * s));
          }
        }
      }
    });
  });
}

}  // namespace llmtrain
