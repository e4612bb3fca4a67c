#include "kernels/adapter.hpp"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/profile.hpp"
#include "kernels/adapter_checks.hpp"
#include "kernels/host/column_sum.hpp"
#include "kernels/host/dropout_row.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/host/product/dequantize.hpp"

namespace llmtrain {

namespace {

constexpr int64_t rows_per_task = 16;

float value_at(const Tensor& t, int64_t i) {
  float value = 0;
  host::dispatch(t.dtype, [&](auto* tag) { value = host::load(static_cast<const decltype(tag)>(t.data) + i); });
  return value;
}

struct BlockShape {
  int64_t rows, columns;
};

/// to = or += scale from; rows are `to_stride` and `from_stride` elements apart.
template <class T>
void scale_rows(const BlockShape& block, T* to, int64_t to_stride, const T* from, int64_t from_stride, float scale,
                bool accumulate) {
  host::parallel_blocks(block.rows, rows_per_task, [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      T* out = to + r * to_stride;
      const T* in = from + r * from_stride;
      for (int64_t c = 0; c < block.columns; ++c) {
        const float value = scale * host::load(in + c);
        host::store(out + c, accumulate ? host::load(out + c) + value : value);
      }
    }
  });
}

}  // namespace

void set_block(const Tensor& to, const BlockPlace& place, const Tensor& from, float scale, Stream&, bool accumulate) {
  check_block(to, place, from);
  host::dispatch(to.dtype, [&](auto* tag) {
    auto* out = static_cast<decltype(tag)>(to.data) + place.row * to.dim(1) + place.column;
    const auto* in = static_cast<decltype(tag)>(from.data);
    scale_rows({from.dim(0), from.dim(1)}, out, to.dim(1), in, from.dim(1), scale, accumulate);
  });
}

void get_block(const Tensor& to, const Tensor& from, const BlockPlace& place, float scale, bool accumulate, Stream&) {
  check_block(from, place, to);
  host::dispatch(to.dtype, [&](auto* tag) {
    auto* out = static_cast<decltype(tag)>(to.data);
    const auto* in = static_cast<decltype(tag)>(from.data) + place.row * from.dim(1) + place.column;
    scale_rows({to.dim(0), to.dim(1)}, out, to.dim(1), in, from.dim(1), scale, accumulate);
  });
}

void dropout_rows(const Tensor& out, const Tensor& in, const Batch& batch, const Dropout& dropout, bool accumulate,
                  Stream&) {
  check_dropout_rows(out, in, batch);
  const ProfileSpan span("dropout_rows", [&] { return traffic({&out, &in}); });
  const int64_t width = in.dim(1);
  host::dispatch(in.dtype, [&](auto* tag) {
    auto* to = static_cast<decltype(tag)>(out.data);
    const auto* from = static_cast<decltype(tag)>(in.data);
    host::parallel_blocks(in.dim(0), rows_per_task, [&, to, from](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        host::with_dropout(dropout, batch, r, width, 0, width, [&](int64_t first, int64_t count, const float* scale) {
          for (int64_t c = 0; c < count; ++c) {
            const int64_t i = r * width + first + c;
            const float value = host::load(from + i) * (scale == nullptr ? 1.0f : scale[c]);
            host::store(to + i, accumulate ? host::load(to + i) + value : value);
          }
        });
      }
    });
  });
}

namespace {

float norm_of(double squares) { return squares == 0 ? 1 : static_cast<float>(std::sqrt(squares)); }

/// out[o] = of_row(sum of the squares of row o).
template <class F>
void sum_squares(const Tensor& out, const WeightMatrix& w, const Tensor& t, const Tensor& a, const F& of_row) {
  check_row_norms(out, w, t, a);
  const int64_t columns = w.dim(1), rank = t.empty() ? 0 : t.dim(1);
  const ProfileSpan span("row_norms",
                         [&] { return traffic({}, w, 2.0 * static_cast<double>(w.dim(0) * columns * (rank + 1))); });
  constexpr int64_t strip = 256;
  host::dispatch(w.dtype(), [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T* weights = w.is_quantized() ? nullptr : static_cast<const T*>(w.dense().data);
    const T* left = static_cast<const T*>(t.data);
    const T* right = static_cast<const T*>(a.data);
    float* to = out.as<float>();
    host::parallel_blocks(w.dim(0), rows_per_task, [=, &w, &of_row](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        double sum = 0;
        for (int64_t first = 0; first < columns; first += strip) {
          const int64_t count = std::min(strip, columns - first);
          float sums[strip];
          if (weights == nullptr) {
            host::dequantize_row(w.quantized(), o, first, count, w.dtype(), sums, true);
          } else {
            for (int64_t c = 0; c < count; ++c) sums[c] = host::load(weights + o * columns + first + c);
          }
          for (int64_t k = 0; k < rank; ++k) {
            const float factor = host::load(left + o * rank + k);
            if (factor == 0) continue;
            const T* row = right + k * columns + first;
#pragma omp simd
            for (int64_t c = 0; c < count; ++c) sums[c] += factor * host::load(row + c);
          }
          for (int64_t c = 0; c < count; ++c) sum += double{sums[c]} * double{sums[c]};
        }
        to[o] = of_row(sum);
      }
    });
  });
}

}  // namespace

void row_norms(const Tensor& norms, const WeightMatrix& w, const Tensor& t, const Tensor& a, Stream&) {
  sum_squares(norms, w, t, a, norm_of);
}

void row_squares(const Tensor& squares, const WeightMatrix& w, const Tensor& t, const Tensor& a, Stream&) {
  sum_squares(squares, w, t, a, [](double sum) { return static_cast<float>(sum); });
}

void roots_of_squares(const Tensor& squares, Stream&) {
  float* x = squares.as<float>();
  for (int64_t i = 0; i < squares.numel(); ++i) x[i] = norm_of(x[i]);
}

void scale_columns(const Tensor& to, const Tensor& from, const Tensor& numerators, const Tensor& denominators,
                   const Tensor& bias, Stream&) {
  check_scale_columns(to, from, numerators, denominators, bias);
  const ProfileSpan span("scale_columns", [&] { return traffic({&to, &from}); });
  const int64_t columns = from.dim(1);
  float* factors = host::scratch(2 * columns);
  float* shifts = factors + columns;
  for (int64_t c = 0; c < columns; ++c) {
    factors[c] = value_at(numerators, c) / denominators.as<float>()[c];
    shifts[c] = bias.empty() ? 0.0f : value_at(bias, c);
  }
  host::dispatch(from.dtype, [&](auto* tag) {
    auto* out = static_cast<decltype(tag)>(to.data);
    const auto* in = static_cast<decltype(tag)>(from.data);
    host::parallel_blocks(from.dim(0), rows_per_task, [=](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t i = r * columns + c;
          host::store(out + i, host::load(in + i) * factors[c] + shifts[c]);
        }
      }
    });
  });
}

void column_dots(const Tensor& dots, const Tensor& a, const Tensor& b, const Tensor& denominators, bool accumulate,
                 Stream&) {
  check_column_dots(dots, a, b, denominators);
  const ProfileSpan span("column_dots", [&] { return traffic({&a, &b}); });
  const int64_t columns = a.dim(1);
  const float* norms = denominators.as<float>();
  host::dispatch(a.dtype, [&](auto* tag) {
    const auto* left = static_cast<decltype(tag)>(a.data);
    const auto* right = static_cast<decltype(tag)>(b.data);
    const auto add_rows = [=](float* sums, int64_t begin, int64_t end, int64_t first, int64_t last) {
      for (int64_t r = begin; r < end; ++r) {
#pragma omp simd
        for (int64_t c = first; c < last; ++c) {
          sums[c] += host::load(left + r * columns + c) * host::load(right + r * columns + c) / norms[c];
        }
      }
    };
    host::column_sums({a.dim(0), columns, 1, false}, add_rows, {dots.as<float>()}, accumulate);
  });
}

}  // namespace llmtrain
