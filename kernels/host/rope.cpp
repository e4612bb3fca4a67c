#include "kernels/rope.hpp"

#include <algorithm>
#include <cmath>

#include "core/profile.hpp"
#include "kernels/attention.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

using namespace host;

namespace {

constexpr int64_t max_rope_frequencies = max_head_dim / 2;

/// A row of a table: cos, then sin.
void fill_row(float* row, int64_t position, const double* inverse_frequencies, int64_t half, double factor) {
  for (int64_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * inverse_frequencies[i];
    row[i] = static_cast<float>(factor * std::cos(angle));
    row[half + i] = static_cast<float>(factor * std::sin(angle));
  }
}

}  // namespace

void rope_table(const Tensor& table, const double* inverse_frequencies, double factor, Stream& /*stream*/) {
  const int64_t width = table.dim(1);
  float* out = table.as<float>();
  parallel_for(table.dim(0), [&](int64_t p) { fill_row(out + p * width, p, inverse_frequencies, width / 2, factor); });
}

void rope_table_by_length(const Tensor& table, const RopeByLength& f, const Batch& batch, Stream& /*stream*/) {
  const ProfileSpan span("rope_table_by_length", [&] { return traffic({&table}); });
  const int64_t width = table.dim(1), half = width / 2;
  LLMTRAIN_CHECK(table.dim(0) >= batch.tokens && half <= max_rope_frequencies, "shape of a table of rope");
  const int32_t* segments = batch.segments.as<int32_t>();
  const int32_t* positions = batch.positions.as<int32_t>();
  float* out = table.as<float>();
  for (int64_t s = 0; s < batch.segment_count; ++s) {
    const int64_t length = segments[s + 1] - segments[s];
    double inverse[max_rope_frequencies];
    const double* base = length > f.limit ? f.long_frequencies : f.short_frequencies;
    std::copy(base, base + half, inverse);
    if (length > f.limit && f.ntk_factor > 0) {
      const double stretch =
          f.ntk_factor * static_cast<double>(length) / static_cast<double>(f.limit) - (f.ntk_factor - 1);
      for (int64_t i = 0; i < half; ++i) {
        inverse[i] *= std::pow(stretch, -2.0 * static_cast<double>(i) / static_cast<double>(width - 2));
      }
    }
    parallel_for(length, [&](int64_t r) {
      const int64_t row = segments[s] + r;
      fill_row(out + row * width, positions[row], inverse, half, f.factor);
    });
  }
}

void rope_apply(const Tensor& qkv, const Tensor& table, const Tensor& positions, int64_t rotated_heads,
                int64_t head_dim, bool inverse, Stream& /*stream*/) {
  const ProfileSpan span("rope_apply", [&] { return traffic({&qkv, &qkv}); });
  const int64_t rows = qkv.dim(0), width = qkv.dim(1), rotated = table.dim(1), half = rotated / 2;
  LLMTRAIN_CHECK(rotated % 2 == 0 && rotated <= head_dim && rotated_heads * head_dim <= width, "shapes of rope");
  LLMTRAIN_CHECK(positions.empty() ? table.dim(0) >= rows : positions.numel() == rows, "rows of rope");
  const float* cos_sin = table.as<float>();
  const int32_t* place = positions.empty() ? nullptr : positions.as<int32_t>();
  const float sign = inverse ? -1.0f : 1.0f;
  constexpr int64_t rows_per_task = 16;
  dispatch(qkv.dtype, [&](auto* tag) {
    auto* values = static_cast<decltype(tag)>(qkv.data);
    parallel_blocks(rows, rows_per_task, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const float* cosine = cos_sin + (place != nullptr ? place[r] : r) * rotated;
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
