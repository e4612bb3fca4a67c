#include "kernels/head_norm.hpp"

#include <algorithm>
#include <cmath>

#include "core/profile.hpp"
#include "kernels/host/column_sum.hpp"
#include "kernels/host/element.hpp"
#include "kernels/host/lanes.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

namespace {

using namespace host;

constexpr int64_t rows_per_task = 8;

void check_shapes(const Tensor& qkv, const Tensor& raw, const Tensor& rstd, const HeadNormShape& s) {
  const int64_t heads = s.heads + s.kv_heads;
  LLMTRAIN_CHECK(qkv.rank == 2 && qkv.dim(1) == (heads + s.kv_heads) * s.head_dim, "qkv must be [N, (H + 2 G) D]");
  LLMTRAIN_CHECK(raw.dtype == qkv.dtype && raw.numel() >= qkv.dim(0) * heads * s.head_dim,
                 "raw must be [N, (H + G) D] in qkv's dtype");
  LLMTRAIN_CHECK(rstd.dtype == DType::f32 && rstd.numel() >= qkv.dim(0) * s.normed(), "rstd must be fp32 [N, normed]");
}

/// Vector v of a row.
struct Vector {
  int64_t first, width;
  bool query;

  Vector(const HeadNormShape& s, int64_t v)
      : first(v < s.queries() ? v * s.query_width() : s.heads * s.head_dim + (v - s.queries()) * s.key_width()),
        width(v < s.queries() ? s.query_width() : s.key_width()),
        query(v < s.queries()) {}
};

template <class T>
double sum_squares(const T* x, int64_t width) {
  return lane_sum(width, [x](int64_t i, int64_t n) {
    const Float8 v = load_up_to(x + i, n);
    return v * v;
  });
}

/// x -> raw, x rstd (offset + weight) -> x; returns rstd. `of_blocks`: the sum of squares of all blocks, if there are
/// several.
template <class T, class W>
float normalize(T* x, T* raw, const W* weight, int64_t width, const HeadNormShape& s, const float* of_blocks) {
  std::copy(x, x + width, raw);
  const double squares = of_blocks != nullptr ? double{*of_blocks} : sum_squares(raw, width);
  const auto of_all = static_cast<double>(width * s.blocks);
  const auto rstd = static_cast<float>(1.0 / std::sqrt(squares / of_all + double{s.epsilon}));
#pragma omp simd
  for (int64_t d = 0; d < width; ++d) store(x + d, load(raw + d) * rstd * (s.weight_offset + load(weight + d)));
  return rstd;
}

/// With g = dy (offset + weight) and h = x rstd: the sum of g h.
template <class T, class W>
double sum_products(const T* dy, const T* raw, float rstd, const W* weight, int64_t width, const HeadNormShape& s) {
  return lane_sum(width, [&](int64_t i, int64_t n) {
    return load_up_to(dy + i, n) * (s.weight_offset + load_up_to(weight + i, n)) * (load_up_to(raw + i, n) * rstd);
  });
}

/// Overwrites dy by dx = rstd (g - h mean(g h)); dweight += dy h. `of_blocks`: the sum of g h of all blocks, if there
/// are several.
template <class T, class W>
void vector_gradient(T* dy, float* dweight, const T* raw, float rstd, const W* weight, int64_t width,
                     const HeadNormShape& s, const float* of_blocks) {
  const double sum = of_blocks != nullptr ? double{*of_blocks} : sum_products(dy, raw, rstd, weight, width, s);
  const auto mean = static_cast<float>(sum / static_cast<double>(width * s.blocks));
#pragma omp simd
  for (int64_t d = 0; d < width; ++d) {
    const float y = load(dy + d), h = load(raw + d) * rstd;
    dweight[d] = std::fma(y, h, dweight[d]);
    store(dy + d, rstd * std::fma(-h, mean, y * (s.weight_offset + load(weight + d))));
  }
}

}  // namespace

void head_norm_forward(const HeadNormForward& a, const HeadNormShape& s, Stream& /*stream*/) {
  const ProfileSpan span("head_norm_forward", [&] { return traffic({&a.raw, &a.raw, &a.raw}); });
  check_shapes(a.qkv, a.raw, a.rstd, s);
  const int64_t rows = a.qkv.dim(0), width = a.qkv.dim(1), raw_width = (s.heads + s.kv_heads) * s.head_dim;
  if (s.blocks > 1) check_whole_norms(a.squares, a.qkv, s);
  const float* squares = s.blocks > 1 ? a.squares.as<float>() : nullptr;
  float* rstds = a.rstd.as<float>();
  dispatch(a.qkv, a.query_weight, [&](auto* qkv, auto* query_weight) {
    auto* raws = static_cast<decltype(qkv)>(a.raw.data);
    const auto* key_weight = static_cast<decltype(query_weight)>(a.key_weight.data);
    parallel_blocks(rows, rows_per_task, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t v = 0; v < s.normed(); ++v) {
          const Vector at(s, v);
          rstds[r * s.normed() + v] = normalize(qkv + r * width + at.first, raws + r * raw_width + at.first,
                                                at.query ? query_weight : key_weight, at.width, s,
                                                squares == nullptr ? nullptr : squares + r * s.normed() + v);
        }
      }
    });
  });
}

void head_norm_squares(const Tensor& squares, const Tensor& qkv, const HeadNormShape& s, Stream& /*stream*/) {
  const ProfileSpan span("head_norm_squares", [&] { return traffic({&qkv}); });
  check_whole_norms(squares, qkv, s);
  float* sums = squares.as<float>();
  dispatch(qkv.dtype, [&](auto* tag) {
    const auto* values = static_cast<decltype(tag)>(qkv.data);
    parallel_blocks(qkv.dim(0), rows_per_task, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * s.normed(); i < end * s.normed(); ++i) {
        const Vector at(s, i % s.normed());
        sums[i] = static_cast<float>(sum_squares(values + i / s.normed() * qkv.dim(1) + at.first, at.width));
      }
    });
  });
}

void head_norm_products(const Tensor& products, const HeadNormBackward& a, const HeadNormShape& s, Stream& /*stream*/) {
  const ProfileSpan span("head_norm_products", [&] { return traffic({&a.raw, &a.raw}); });
  check_shapes(a.dqkv, a.raw, a.rstd, s);
  check_whole_norms(products, a.dqkv, s);
  const int64_t width = a.dqkv.dim(1), raw_width = (s.heads + s.kv_heads) * s.head_dim;
  const float* rstds = a.rstd.as<float>();
  float* sums = products.as<float>();
  dispatch(a.dqkv, a.query_weight, [&](auto* dqkv, auto* query_weight) {
    const auto* raws = static_cast<decltype(dqkv)>(a.raw.data);
    const auto* key_weight = static_cast<decltype(query_weight)>(a.key_weight.data);
    parallel_blocks(a.dqkv.dim(0), rows_per_task, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * s.normed(); i < end * s.normed(); ++i) {
        const Vector at(s, i % s.normed());
        const int64_t r = i / s.normed();
        sums[i] = static_cast<float>(sum_products(dqkv + r * width + at.first, raws + r * raw_width + at.first,
                                                  rstds[i], at.query ? query_weight : key_weight, at.width, s));
      }
    });
  });
}

void head_norm_backward(const HeadNormBackward& a, const HeadNormShape& s, Stream& /*stream*/) {
  const ProfileSpan span("head_norm_backward", [&] { return traffic({&a.raw, &a.raw, &a.raw}); });
  check_shapes(a.dqkv, a.raw, a.rstd, s);
  const int64_t rows = a.dqkv.dim(0), width = a.dqkv.dim(1), raw_width = (s.heads + s.kv_heads) * s.head_dim;
  if (s.blocks > 1) check_whole_norms(a.products, a.dqkv, s);
  const float *rstds = a.rstd.as<float>(), *products = s.blocks > 1 ? a.products.as<float>() : nullptr;
  dispatch(a.dqkv, a.query_weight, [&](auto* dqkv, auto* query_weight) {
    const auto* raws = static_cast<decltype(dqkv)>(a.raw.data);
    const auto* key_weight = static_cast<decltype(query_weight)>(a.key_weight.data);
    // adds the gradients of vectors [first, last) of a row, those of keys to `key_sums`
    const auto add = [&](int64_t r, int64_t first, int64_t last, float* query_sums, float* key_sums) {
      for (int64_t v = first; v < last; ++v) {
        const Vector at(s, v);
        vector_gradient(dqkv + r * width + at.first, at.query ? query_sums : key_sums, raws + r * raw_width + at.first,
                        rstds[r * s.normed() + v], at.query ? query_weight : key_weight, at.width, s,
                        products == nullptr ? nullptr : products + r * s.normed() + v);
      }
    };
    const auto out = [](const Tensor& t) { return t.empty() ? nullptr : t.as<float>(); };
    if (!s.whole) {
      const auto rows_of_heads = [&](float* sums, int64_t begin, int64_t end, int64_t /*first*/, int64_t /*last*/) {
        for (int64_t r = begin; r < end; ++r) add(r, 0, s.normed(), sums, sums + s.head_dim);
      };
      return column_sums({rows, s.head_dim, 2, true}, rows_of_heads, {out(a.dquery_weight), out(a.dkey_weight)},
                         a.accumulate);
    }
    for (int64_t v = 0; v < s.normed(); ++v) {
      const auto rows_of_vector = [&](float* sums, int64_t begin, int64_t end, int64_t /*first*/, int64_t /*last*/) {
        for (int64_t r = begin; r < end; ++r) add(r, v, v + 1, sums, sums);
      };
      column_sums({rows, Vector(s, v).width, 1, true}, rows_of_vector,
                  {out(v == 0 ? a.dquery_weight : a.dkey_weight), nullptr}, a.accumulate);
    }
  });
}

}  // namespace llmtrain
