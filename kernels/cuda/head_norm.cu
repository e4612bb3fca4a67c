#include "core/profile.hpp"
#include "kernels/attention.hpp"
#include "kernels/cuda/column_sum.cuh"
#include "kernels/head_norm.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

/// A query or key: number i of [N, normed].
template <class T, class W>
struct Heads {
  T *qkv, *raw;
  float* rstd;
  const W *query_weight, *key_weight;
  int64_t width;
  HeadNormShape shape;
  const float* sums = nullptr;  ///< by vector, of all blocks, if there are several

  LLMTRAIN_HOST_DEVICE int64_t normed() const { return shape.whole ? 2 : shape.heads + shape.kv_heads; }
  __device__ int64_t raw_width() const { return (shape.heads + shape.kv_heads) * shape.head_dim; }
  __device__ bool is_query(int64_t i) const { return i % normed() < (shape.whole ? 1 : shape.heads); }
  /// First column, and their number.
  __device__ int64_t first(int64_t i) const { return i % normed() * (shape.whole ? shape.heads : 1) * shape.head_dim; }
  __device__ int64_t length(int64_t i) const {
    if (!shape.whole) return shape.head_dim;
    return (is_query(i) ? shape.heads : shape.kv_heads) * shape.head_dim;
  }
  __device__ T* values(int64_t i) const { return qkv + i / normed() * width + first(i); }
  __device__ T* raw_values(int64_t i) const { return raw + i / normed() * raw_width() + first(i); }
  __device__ const W* weight(int64_t i) const { return is_query(i) ? query_weight : key_weight; }
  __device__ float scale_of_column(int64_t row, int64_t column) const {
    const int64_t queries = shape.heads * shape.head_dim;
    return rstd[row * normed() + (shape.whole ? (column < queries ? 0 : 1) : column / shape.head_dim)];
  }
};

/// The sum of squares of a vector that is too long for the registers of a warp.
template <class T>
__device__ float sum_squares(const T* x, int64_t n) {
  float squares = 0;
  for (int64_t d = lane(); d < n; d += warp_lanes) squares = fmaf(load(x + d), load(x + d), squares);
  return warp_sum(squares);
}

/// Both passes of it.
template <class T, class W>
struct ForwardWhole {
  Heads<T, W> of;

  __device__ void operator()(int64_t i) const {
    const int64_t n = of.length(i);
    T *x = of.values(i), *raw = of.raw_values(i);
    const W* weight = of.weight(i);
    const float squares = of.sums != nullptr ? of.sums[i] : sum_squares(x, n);
    const float scale = 1.0f / sqrtf(squares / static_cast<float>(n * of.shape.blocks) + of.shape.epsilon);
    if (lane() == 0) of.rstd[i] = scale;
    for (int64_t d = lane(); d < n; d += warp_lanes) {
      const float value = load(x + d);
      store(raw + d, value);
      store(x + d, value * scale * (of.shape.weight_offset + load(weight + d)));
    }
  }
};

template <class T, class W>
struct BackwardWhole {
  Heads<T, W> of;

  __device__ float slope(int64_t i, int64_t d) const {
    return load(of.values(i) + d) * (of.shape.weight_offset + load(of.weight(i) + d));
  }
  __device__ float sum_products(int64_t i) const {
    const T* raw = of.raw_values(i);
    float sum = 0;
    for (int64_t d = lane(); d < of.length(i); d += warp_lanes) {
      sum = fmaf(slope(i, d), load(raw + d) * of.rstd[i], sum);
    }
    return warp_sum(sum);
  }
  __device__ void operator()(int64_t i) const {
    const int64_t n = of.length(i);
    const T* raw = of.raw_values(i);
    const float scale = of.rstd[i], sum = of.sums != nullptr ? of.sums[i] : sum_products(i);
    const float mean = sum / static_cast<float>(n * of.shape.blocks);
    for (int64_t d = lane(); d < n; d += warp_lanes) {
      store(of.values(i) + d, scale * fmaf(-(load(raw + d) * scale), mean, slope(i, d)));
    }
  }
};

/// A vector of a block, for the sums over all blocks.
template <class T, class W>
struct SumSquares {
  Heads<T, W> of;
  float* sums;
  __device__ void operator()(int64_t i) const {
    const float sum = sum_squares(of.values(i), of.length(i));
    if (lane() == 0) sums[i] = sum;
  }
};

template <class T, class W>
struct SumProducts {
  Heads<T, W> of;
  float* sums;
  __device__ void operator()(int64_t i) const {
    const float sum = BackwardWhole<T, W>{of}.sum_products(i);
    if (lane() == 0) sums[i] = sum;
  }
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
    const float h = load(of.raw + row * of.raw_width() + column) * of.scale_of_column(row, column);
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
    const int64_t queries = shape.heads * shape.head_dim, width = shape.whole ? queries : shape.head_dim;
    const bool query = i < width;
    if ((query ? dquery : dkey) == nullptr) return;
    const int64_t d = query ? i : i - width, heads = shape.whole ? 1 : query ? shape.heads : shape.kv_heads;
    const float* first = by_head + (query ? 0 : queries) + d;
    float* out = (query ? dquery : dkey) + d;
    double sum = accumulate ? *out : 0.0f;
    for (int64_t h = 0; h < heads; ++h) sum += first[h * shape.head_dim];
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
  const int64_t heads = s.heads + s.kv_heads;
  LLMTRAIN_CHECK(all.rank == 2 && all.dim(1) == (heads + s.kv_heads) * s.head_dim, "qkv must be [N, (H + 2 G) D]");
  LLMTRAIN_CHECK(raw.dtype == all.dtype && raw.numel() >= all.dim(0) * heads * s.head_dim,
                 "raw must be [N, (H + G) D] in qkv's dtype");
  LLMTRAIN_CHECK(rstd.dtype == DType::f32 && rstd.numel() >= all.dim(0) * s.normed(), "rstd must be fp32 [N, normed]");
  return {qkv, raw.as<T>(), rstd.as<float>(), query_weight, key_weight.as<W>(), all.dim(1), s};
}

/// Sums over the blocks of whole norms.
const float* sums_of(const Tensor& sums, const Tensor& qkv, const HeadNormShape& s) {
  if (s.blocks == 1) return nullptr;
  check_whole_norms(sums, qkv, s);
  return sums.as<float>();
}

}  // namespace

void head_norm_forward(const HeadNormForward& a, const HeadNormShape& s, Stream& stream) {
  const ProfileSpan span("head_norm_forward", [&] { return traffic({&a.raw, &a.raw, &a.raw}); });
  dispatch(a.qkv, a.query_weight, [&]<class T, class W>(T* qkv, W* query_weight) {
    Heads<T, W> of = heads_of(qkv, a.qkv, a.raw, a.rstd, query_weight, a.key_weight, s);
    of.sums = sums_of(a.squares, a.qkv, s);
    if (s.whole) return for_each_warp(a.qkv.dim(0) * of.normed(), stream, ForwardWhole<T, W>{of});
    with_held(s.head_dim, [&]<int held>(std::integral_constant<int, held>) {
      for_each_warp(a.qkv.dim(0) * of.normed(), stream, ForwardHead<T, W, held>{of});
    });
  });
}

void head_norm_backward(const HeadNormBackward& a, const HeadNormShape& s, Stream& stream) {
  const ProfileSpan span("head_norm_backward", [&] { return traffic({&a.raw, &a.raw, &a.raw}); });
  const int64_t rows = a.dqkv.dim(0), columns = (s.heads + s.kv_heads) * s.head_dim;
  dispatch(a.dqkv, a.query_weight, [&]<class T, class W>(T* dqkv, W* query_weight) {
    Heads<T, W> of = heads_of(dqkv, a.dqkv, a.raw, a.rstd, query_weight, a.key_weight, s);
    of.sums = sums_of(a.products, a.dqkv, s);
    const int64_t bytes = column_sum_bytes(rows, columns);
    auto* memory = static_cast<char*>(scratch(bytes + columns * static_cast<int64_t>(sizeof(float))));
    auto* by_head = reinterpret_cast<float*>(memory + bytes);
    // The kernel that reads dy runs first, since dx overwrites it.
    column_sums(memory, rows, columns, {by_head}, false, stream, AddWeights<T, W>{of});
    const auto out = [](const Tensor& t) { return t.empty() ? nullptr : t.as<float>(); };
    for_each(s.query_width() + s.key_width(), stream,
             FoldHeads{s, by_head, out(a.dquery_weight), out(a.dkey_weight), a.accumulate});
    if (s.whole) return for_each_warp(rows * of.normed(), stream, BackwardWhole<T, W>{of});
    with_held(s.head_dim, [&]<int held>(std::integral_constant<int, held>) {
      for_each_warp(rows * of.normed(), stream, BackwardHead<T, W, held>{of});
    });
  });
}

void head_norm_squares(const Tensor& squares, const Tensor& qkv, const HeadNormShape& s, Stream& stream) {
  const ProfileSpan span("head_norm_squares", [&] { return traffic({&qkv}); });
  check_whole_norms(squares, qkv, s);
  dispatch(qkv, [&]<class T>(T* values) {
    const Heads<T, float> of{values, nullptr, nullptr, nullptr, nullptr, qkv.dim(1), s};
    for_each_warp(qkv.dim(0) * of.normed(), stream, SumSquares<T, float>{of, squares.as<float>()});
  });
}

void head_norm_products(const Tensor& products, const HeadNormBackward& a, const HeadNormShape& s, Stream& stream) {
  const ProfileSpan span("head_norm_products", [&] { return traffic({&a.raw, &a.raw}); });
  check_whole_norms(products, a.dqkv, s);
  dispatch(a.dqkv, a.query_weight, [&]<class T, class W>(T* dqkv, W* query_weight) {
    const Heads<T, W> of = heads_of(dqkv, a.dqkv, a.raw, a.rstd, query_weight, a.key_weight, s);
    for_each_warp(a.dqkv.dim(0) * of.normed(), stream, SumProducts<T, W>{of, products.as<float>()});
  });
}

}  // namespace llmtrain
