#include "core/profile.hpp"
#include "kernels/attention.hpp"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/head_norm.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

/// A query or key: number i of [N, H + G].
template <class T, class W>
struct Heads {
  T *qkv, *raw;
  float* rstd;
  const W *query_weight, *key_weight;
  int64_t width;
  HeadNormShape shape;

  LLMTRAIN_HOST_DEVICE int64_t normed() const { return shape.heads + shape.kv_heads; }
  __device__ T* values(int64_t i) const { return qkv + i / normed() * width + i % normed() * shape.head_dim; }
  __device__ const W* weight(int64_t i) const { return i % normed() < shape.heads ? query_weight : key_weight; }
};

/// Sums over a head in fp32: it is short, and a warp holds it in registers.
template <class T, class W, int held>
struct ForwardHead {
  Heads<T, W> of;

  __device__ void operator()(int64_t i) const {
    const int64_t n = of.shape.head_dim;
    T *x = of.values(i), *raw = of.raw + i * n;
    const W* weight = of.weight(i);
    Pack values[held] = {};
    float squares = 0;
    for_held_packs<held>(n, [&](int at, int64_t d) {
      values[at] = load_pack(x, d, n);
      for (const float v : values[at].v) squares = fmaf(v, v, squares);
    });
    const float scale = 1.0f / sqrtf(warp_sum(squares) / static_cast<float>(n) + of.shape.epsilon);
    if (lane() == 0) of.rstd[i] = scale;
    for_held_packs<held>(n, [&](int at, int64_t d) {
      Pack p = values[at];
      const Pack w = load_pack(weight, d, n);
      store_pack(raw, d, n, p);
      for (int k = 0; k < Pack::size; ++k) p.v[k] *= scale * (of.shape.weight_offset + w.v[k]);
      store_pack(x, d, n, p);
    });
  }
};

/// With g = dy (offset + weight) and h = x rstd: overwrites dy by dx = rstd (g - h mean(g h)).
template <class T, class W, int held>
struct BackwardHead {
  Heads<T, W> of;

  __device__ void operator()(int64_t i) const {
    const int64_t n = of.shape.head_dim;
    T* gradient = of.values(i);
    const T* raw = of.raw + i * n;
    const W* weight = of.weight(i);
    const float scale = of.rstd[i];
    Pack g[held] = {}, h[held] = {};
    float sum = 0;
    for_held_packs<held>(n, [&](int at, int64_t d) {
      const Pack w = load_pack(weight, d, n);
      g[at] = load_pack(gradient, d, n);
      h[at] = load_pack(raw, d, n);
      for (int k = 0; k < Pack::size; ++k) {
        g[at].v[k] *= of.shape.weight_offset + w.v[k];
        h[at].v[k] *= scale;
        sum = fmaf(g[at].v[k], h[at].v[k], sum);
      }
    });
    const float mean = warp_sum(sum) / static_cast<float>(n);
    for_held_packs<held>(n, [&](int at, int64_t d) {
      for (int k = 0; k < Pack::size; ++k) g[at].v[k] = scale * fmaf(-h[at].v[k], mean, g[at].v[k]);
      store_pack(gradient, d, n, g[at]);
    });
  }
};

/// Computes dweight += dy h for every head separately: columns are those of raw.
template <class T, class W>
struct AddWeights {
  Heads<T, W> of;
  __device__ void operator()(int64_t row, int64_t column, float* sums) const {
    const int64_t normed = of.normed();
    const float h =
        load(of.raw + row * normed * of.shape.head_dim + column) * of.rstd[row * normed + column / of.shape.head_dim];
    sums[0] = fmaf(load(of.qkv + row * of.width + column), h, sums[0]);
  }
};

/// dweight = or += the sum over its heads, in order.
struct FoldHeads {
  HeadNormShape shape;
  const float* by_head;
  float *dquery, *dkey;
  bool accumulate;
  __device__ void operator()(int64_t i) const {
    const bool query = i < shape.head_dim;
    const int64_t d = query ? i : i - shape.head_dim, first = query ? 0 : shape.heads;
    const int64_t end = query ? shape.heads : shape.heads + shape.kv_heads;
    if ((query ? dquery : dkey) == nullptr) return;
    float* out = (query ? dquery : dkey) + d;
    double sum = accumulate ? *out : 0.0f;
    for (int64_t h = first; h < end; ++h) sum += by_head[h * shape.head_dim + d];
    *out = static_cast<float>(sum);
  }
};

/// Calls f(std::integral_constant of the packs that a lane holds of a head).
template <class F>
void with_held(int64_t head_dim, const F& f) {
  const int64_t packs = (head_dim + warp_lanes * Pack::size - 1) / (warp_lanes * Pack::size);
  constexpr int most = max_head_dim / (warp_lanes * Pack::size);
  LLMTRAIN_CHECK(packs <= most, "the head is too long");
  if (packs == 1) return f(std::integral_constant<int, 1>{});
  if (packs == 2) return f(std::integral_constant<int, 2>{});
  f(std::integral_constant<int, most>{});
}

template <class T, class W>
Heads<T, W> heads_of(T* qkv, const Tensor& all, const Tensor& raw, const Tensor& rstd, W* query_weight,
                     const Tensor& key_weight, const HeadNormShape& s) {
  const int64_t normed = s.heads + s.kv_heads;
  LLMTRAIN_CHECK(all.rank == 2 && all.dim(1) == (normed + s.kv_heads) * s.head_dim, "qkv must be [N, (H + 2 G) D]");
  LLMTRAIN_CHECK(raw.dtype == all.dtype && raw.numel() >= all.dim(0) * normed * s.head_dim,
                 "raw must be [N, (H + G) D] in qkv's dtype");
  LLMTRAIN_CHECK(rstd.dtype == DType::f32 && rstd.numel() >= all.dim(0) * normed, "rstd must be fp32 [N, H + G]");
  return {qkv, raw.as<T>(), rstd.as<float>(), query_weight, key_weight.as<W>(), all.dim(1), s};
}

}  // namespace

void head_norm_forward(const HeadNormForward& a, const HeadNormShape& s, Stream& stream) {
  const ProfileSpan span("head_norm_forward", [&] { return traffic({&a.raw, &a.raw, &a.raw}); });
  dispatch(a.qkv, a.query_weight, [&]<class T, class W>(T* qkv, W* query_weight) {
    const Heads<T, W> of = heads_of(qkv, a.qkv, a.raw, a.rstd, query_weight, a.key_weight, s);
    with_held(s.head_dim, [&]<int held>(std::integral_constant<int, held>) {
      for_each_warp(a.qkv.dim(0) * of.normed(), stream, ForwardHead<T, W, held>{of});
    });
  });
}

void head_norm_backward(const HeadNormBackward& a, const HeadNormShape& s, Stream& stream) {
  const ProfileSpan span("head_norm_backward", [&] { return traffic({&a.raw, &a.raw, &a.raw}); });
  const int64_t rows = a.dqkv.dim(0), columns = (s.heads + s.kv_heads) * s.head_dim;
  dispatch(a.dqkv, a.query_weight, [&]<class T, class W>(T* dqkv, W* query_weight) {
    const Heads<T, W> of = heads_of(dqkv, a.dqkv, a.raw, a.rstd, query_weight, a.key_weight, s);
    const int64_t bytes = column_sum_bytes(rows, columns);
    auto* memory = static_cast<char*>(scratch(bytes + columns * static_cast<int64_t>(sizeof(float))));
    auto* by_head = reinterpret_cast<float*>(memory + bytes);
    // The kernel that reads dy runs first, since dx overwrites it.
    column_sums(memory, rows, columns, {by_head}, false, stream, AddWeights<T, W>{of});
    const auto out = [](const Tensor& t) { return t.empty() ? nullptr : t.as<float>(); };
    for_each(2 * s.head_dim, stream, FoldHeads{s, by_head, out(a.dquery_weight), out(a.dkey_weight), a.accumulate});
    with_held(s.head_dim, [&]<int held>(std::integral_constant<int, held>) {
      for_each_warp(rows * of.normed(), stream, BackwardHead<T, W, held>{of});
    });
  });
}

}  // namespace llmtrain
