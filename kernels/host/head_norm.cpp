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
  const int64_t normed = s.heads + s.kv_heads;
  LLMTRAIN_CHECK(qkv.rank == 2 && qkv.dim(1) == (normed + s.kv_heads) * s.head_dim, "qkv must be [N, (H + 2 G) D]");
  LLMTRAIN_CHECK(raw.dtype == qkv.dtype && raw.numel() >= qkv.dim(0) * normed * s.head_dim,
                 "raw must be [N, (H + G) D] in qkv's dtype");
  LLMTRAIN_CHECK(rstd.dtype == DType::f32 && rstd.numel() >= qkv.dim(0) * normed, "rstd must be fp32 [N, H + G]");
}

/// x -> raw, x rstd (offset + weight) -> x; returns rstd.
template <class T, class W>
float normalize_head(T* x, T* raw, const W* weight, const HeadNormShape& s) {
  std::copy(x, x + s.head_dim, raw);
  const double squares = lane_sum(s.head_dim, [raw](int64_t i, int64_t n) {
    const Float8 v = load_up_to(raw + i, n);
    return v * v;
  });
  const auto rstd = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(s.head_dim) + double{s.epsilon}));
#pragma omp simd
  for (int64_t d = 0; d < s.head_dim; ++d) store(x + d, load(raw + d) * rstd * (s.weight_offset + load(weight + d)));
  return rstd;
}

/// With g = dy (offset + weight) and h = x rstd: overwrites dy by dx = rstd (g - h mean(g h)); dweight += dy h.
template <class T, class W>
void head_gradient(T* dy, float* dweight, const T* raw, float rstd, const W* weight, const HeadNormShape& s) {
  const double sum = lane_sum(s.head_dim, [&](int64_t i, int64_t n) {
    return load_up_to(dy + i, n) * (s.weight_offset + load_up_to(weight + i, n)) * (load_up_to(raw + i, n) * rstd);
  });
  const auto mean = static_cast<float>(sum / static_cast<double>(s.head_dim));
#pragma omp simd
  for (int64_t d = 0; d < s.head_dim; ++d) {
    const float y = load(dy + d), h = load(raw + d) * rstd;
    dweight[d] = std::fma(y, h, dweight[d]);
    store(dy + d, rstd * std::fma(-h, mean, y * (s.weight_offset + load(weight + d))));
  }
}

}  // namespace

void head_norm_forward(const HeadNormForward& a, const HeadNormShape& s, Stream& /*stream*/) {
  const ProfileSpan span("head_norm_forward", [&] { return traffic({&a.raw, &a.raw, &a.raw}); });
  check_shapes(a.qkv, a.raw, a.rstd, s);
  const int64_t rows = a.qkv.dim(0), width = a.qkv.dim(1), normed = s.heads + s.kv_heads;
  float* rstds = a.rstd.as<float>();
  dispatch(a.qkv, a.query_weight, [&](auto* qkv, auto* query_weight) {
    auto* raws = static_cast<decltype(qkv)>(a.raw.data);
    const auto* key_weight = static_cast<decltype(query_weight)>(a.key_weight.data);
    parallel_blocks(rows, rows_per_task, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t h = 0; h < normed; ++h) {
          const auto* weight = h < s.heads ? query_weight : key_weight;
          auto* raw = raws + (r * normed + h) * s.head_dim;
          rstds[r * normed + h] = normalize_head(qkv + r * width + h * s.head_dim, raw, weight, s);
        }
      }
    });
  });
}

void head_norm_backward(const HeadNormBackward& a, const HeadNormShape& s, Stream& /*stream*/) {
  const ProfileSpan span("head_norm_backward", [&] { return traffic({&a.raw, &a.raw, &a.raw}); });
  check_shapes(a.dqkv, a.raw, a.rstd, s);
  const int64_t rows = a.dqkv.dim(0), width = a.dqkv.dim(1), normed = s.heads + s.kv_heads;
  const float* rstds = a.rstd.as<float>();
  dispatch(a.dqkv, a.query_weight, [&](auto* dqkv, auto* query_weight) {
    const auto* raws = static_cast<decltype(dqkv)>(a.raw.data);
    const auto* key_weight = static_cast<decltype(query_weight)>(a.key_weight.data);
    const auto add = [&](float* sums, int64_t begin, int64_t end, int64_t /*first*/, int64_t /*last*/) {
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t h = 0; h < normed; ++h) {
          const bool query = h < s.heads;
          const auto* raw = raws + (r * normed + h) * s.head_dim;
          head_gradient(dqkv + r * width + h * s.head_dim, query ? sums : sums + s.head_dim, raw, rstds[r * normed + h],
                        query ? query_weight : key_weight, s);
        }
      }
    };
    const ColumnSumShape shape{rows, s.head_dim, 2, true};
    const auto out = [](const Tensor& t) { return t.empty() ? nullptr : t.as<float>(); };
    column_sums(shape, add, {out(a.dquery_weight), out(a.dkey_weight)}, a.accumulate);
  });
}

}  // namespace llmtrain
