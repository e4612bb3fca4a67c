#include "core/profile.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/rope.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

/// Element i of the halves of a row of a table: cos, then sin.
__device__ inline void fill_pair(float* row, int64_t i, int64_t half, double angle, double factor) {
  row[i] = static_cast<float>(factor * cos(angle));
  row[half + i] = static_cast<float>(factor * sin(angle));
}

struct FillTable {
  float* table;
  const double* inverse_frequencies;
  int64_t half;
  double factor;
  __device__ void operator()(int64_t at) const {
    const int64_t position = at / half, i = at % half;
    fill_pair(table + position * 2 * half, i, half, static_cast<double>(position) * inverse_frequencies[i], factor);
  }
};

struct FillTableByLength {
  float* table;
  const double *short_frequencies, *long_frequencies;
  int64_t half, limit;
  double ntk_factor, factor;
  const int32_t *segments, *positions;
  int64_t segment_count;

  /// Length of the segment that contains a row, by bisection.
  __device__ int64_t length(int64_t row) const {
    int64_t segment = 0, beyond = segment_count;  // segments[segment] <= row < segments[beyond]
    while (beyond - segment > 1) {
      const int64_t middle = (segment + beyond) / 2;
      (segments[middle] <= row ? segment : beyond) = middle;
    }
    return segments[segment + 1] - segments[segment];
  }

  __device__ void operator()(int64_t at) const {
    const int64_t row = at / half, i = at % half, tokens = length(row);
    double frequency = (tokens > limit ? long_frequencies : short_frequencies)[i];
    if (tokens > limit && ntk_factor > 0) {
      const double stretch = ntk_factor * static_cast<double>(tokens) / static_cast<double>(limit) - (ntk_factor - 1);
      frequency *= pow(stretch, -2.0 * static_cast<double>(i) / static_cast<double>(2 * half - 2));
    }
    fill_pair(table + row * 2 * half, i, half, static_cast<double>(positions[row]) * frequency, factor);
  }
};

/// Heads that one thread rotates with the same cosines and sines.
constexpr int64_t heads_at_once = 4;

template <class T>
struct Rotate {
  T* qkv;
  const float* table;
  const int32_t* positions;
  int64_t width, half, head_dim, heads;
  float sign;

  LLMTRAIN_HOST_DEVICE int64_t packs() const { return (half + wide<T> - 1) / wide<T>; }
  LLMTRAIN_HOST_DEVICE int64_t groups() const { return (heads + heads_at_once - 1) / heads_at_once; }

  __device__ void operator()(int64_t i) const {
    constexpr int64_t size = wide<T>;
    const int64_t at = i % packs() * size, group = i / packs() % groups(), row = i / packs() / groups();
    const float* angles = table + (positions != nullptr ? positions[row] : row) * 2 * half;
    const auto cosine = load_pack<size>(angles, at, half);
    auto sine = load_pack<size>(angles + half, at, half);
    for (int k = 0; k < size; ++k) sine.v[k] *= sign;
    const int64_t first = group * heads_at_once, end = std::min(heads, first + heads_at_once);
    for (int64_t head = first; head < end; ++head) {
      T *low = qkv + row * width + head * head_dim, *high = low + half;
      auto a = load_pack<size>(low, at, half), b = load_pack<size>(high, at, half);
      for (int k = 0; k < size; ++k) {
        const float c = cosine.v[k], s = sine.v[k], real = a.v[k], imaginary = b.v[k];
        a.v[k] = fmaf(real, c, -(imaginary * s));
        b.v[k] = fmaf(imaginary, c, real * s);
      }
      store_pack(low, at, half, a);
      store_pack(high, at, half, b);
    }
  }
};

}  // namespace

void rope_table(const Tensor& table, const double* inverse_frequencies, double factor, Stream& stream) {
  const int64_t half = table.dim(1) / 2, bytes = half * static_cast<int64_t>(sizeof(double));
  auto* frequencies = static_cast<double*>(scratch(bytes));
  copy_to_device(frequencies, inverse_frequencies, bytes, stream);
  for_each(table.dim(0) * half, stream, FillTable{table.as<float>(), frequencies, half, factor});
}

void rope_table_by_length(const Tensor& table, const RopeByLength& f, const Batch& batch, Stream& stream) {
  const int64_t half = table.dim(1) / 2, bytes = half * static_cast<int64_t>(sizeof(double));
  LLMTRAIN_CHECK(table.dim(0) >= batch.tokens, "the table of rope must have a row per token");
  auto* frequencies = static_cast<double*>(scratch(2 * bytes));
  copy_to_device(frequencies, f.short_frequencies, bytes, stream);
  copy_to_device(frequencies + half, f.long_frequencies, bytes, stream);
  for_each(batch.tokens * half, stream,
           FillTableByLength{table.as<float>(), frequencies, frequencies + half, half, f.limit, f.ntk_factor, f.factor,
                             batch.segments.as<int32_t>(), batch.positions.as<int32_t>(), batch.segment_count});
}

void rope_apply(const Tensor& qkv, const Tensor& table, const Tensor& positions, int64_t rotated_heads,
                int64_t head_dim, bool inverse, Stream& stream) {
  const ProfileSpan span("rope_apply", [&] { return traffic({&qkv, &qkv}); });
  const int64_t rows = qkv.dim(0), width = qkv.dim(1), rotated = table.dim(1);
  LLMTRAIN_CHECK(rotated % 2 == 0 && rotated <= head_dim && rotated_heads * head_dim <= width,
                 "rotated heads must fit a row, and rotated elements a head, in pairs");
  LLMTRAIN_CHECK(positions.empty() ? table.dim(0) >= rows : positions.numel() == rows, "rope needs a position per row");
  dispatch(qkv, [&]<class T>(T* values) {
    const Rotate<T> rotate{values,        table.as<float>(),     positions.empty() ? nullptr : positions.as<int32_t>(),
                           width,         rotated / 2,           head_dim,
                           rotated_heads, inverse ? -1.0f : 1.0f};
    for_each(rows * rotate.groups() * rotate.packs(), stream, rotate);
  });
}

}  // namespace llmtrain
