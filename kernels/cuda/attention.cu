#include "core/profile.hpp"
#include "kernels/attention.hpp"
#include "kernels/cuda/attention_tiles.cuh"

// bf16 heads of up to 128 elements: attention_tiles.cuh. Here: any head dimension, in fp32. A warp has one row, of
// queries or of keys, and takes the rows of the other side 32 at a time, one per lane, then 32 elements of the head per
// lane's register. Every sum has one order; nothing is added by several warps.

namespace llmtrain {

namespace {

using namespace cuda;

constexpr int warps = 4;

/// row . other, row in shared memory; four sums, so that rounding errors stay small.
template <class T>
__device__ float dot(const float* row, const T* other, int n) {
  float sums[Pack::size] = {};
  for (int i = 0; i < n; i += Pack::size) {
    const Pack p = load_pack(other, i, n);
    LLMTRAIN_UNROLL
    for (int k = 0; k < Pack::size; ++k) sums[k] = fmaf(i + k < n ? row[i + k] : 0.0f, p.v[k], sums[k]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

template <class T>
__device__ void fetch(float* row, const T* from, int n) {
  for (int d = lane(); d < n; d += warp_lanes) row[d] = load(from + d);
}

/// acc[i] (element lane + 32 i) += sum of weights[j] row(j)[element], j < count.
template <int registers, class Row>
__device__ void add_rows(float (&acc)[registers], const float* weights, int count, int n, const Row& row) {
  for (int j = 0; j < count; ++j) {
    const auto* from = row(j);
    const float weight = weights[j];
    LLMTRAIN_UNROLL
    for (int i = 0; i < registers; ++i) {
      const int d = lane() + warp_lanes * i;
      if (d < n) acc[i] = fmaf(weight, load(from + d), acc[i]);
    }
  }
}
template <int registers, class T>
__device__ void store_row(T* to, const float (&acc)[registers], float factor, int n) {
  LLMTRAIN_UNROLL
  for (int i = 0; i < registers; ++i) {
    const int d = lane() + warp_lanes * i;
    if (d < n) store(to + d, acc[i] * factor);
  }
}

/// Floats of shared memory of a warp: `rows` rows of the head and `weights` times 32 numbers.
constexpr int shared_floats(int64_t head_dim, int rows, int weights) {
  return rows * static_cast<int>(head_dim) + weights * warp_lanes;
}
__device__ inline float* own_shared(int floats) {
  return dynamic_shared<float>() + (threadIdx.x / warp_lanes) * floats;
}

/// A warp per (query row, head); blockIdx.y is the head.
template <class T, int registers>
struct Forward {
  static constexpr int threads = warps * warp_lanes;
  Rows<T> rows;
  T* out;
  float* lse;

  __device__ void operator()() const {
    const int64_t row = int64_t{blockIdx.x} * warps + threadIdx.x / warp_lanes;
    if (row >= rows.count) return;
    const int head = static_cast<int>(blockIdx.y), kv = head / (rows.heads / rows.kv_heads), n = rows.head_dim;
    float* query = own_shared(shared_floats(n, 1, 1));
    float* weights = query + n;
    fetch(query, rows.query(row, head), n);
    __syncwarp();
    int64_t begin = 0, end = 0;
    rows.segment_of(row, begin, end);
    if (rows.window > 0 && row - rows.window + 1 > begin) begin = row - rows.window + 1;
    float acc[registers] = {};
    float highest = -INFINITY, sum = 0;  // sum: of this lane's keys
    for (int64_t first = begin; first <= row; first += warp_lanes) {
      const int64_t key = first + lane();
      const int keys = static_cast<int>(row - first + 1 < warp_lanes ? row - first + 1 : warp_lanes);
      float slope = 0;
      const float s = lane() < keys ? rows.score(dot(query, rows.key(key, kv), n), slope) : -INFINITY;
      const float now = fmaxf(highest, warp_maximum(s)), shrink = expf(highest - now);
      const float p = lane() < keys ? expf(s - now) : 0.0f;
      highest = now;
      sum = fmaf(sum, shrink, p);
      LLMTRAIN_UNROLL
      for (int i = 0; i < registers; ++i) acc[i] *= shrink;
      weights[lane()] = lane() < keys ? p * rows.keep(row, head, key) : 0.0f;
      __syncwarp();
      add_rows(acc, weights, keys, n, [&](int j) { return rows.value(first + j, kv); });
      __syncwarp();
    }
    sum = warp_sum(sum);
    store_row(out + (row * rows.heads + head) * n, acc, 1 / sum, n);
    if (lane() == 0) lse[head * rows.count + row] = highest + logf(sum);
  }
};

/// delta[head, row] = dout . out
template <class T>
struct Delta {
  const T *dout, *out;
  float* delta;
  int64_t rows;
  int heads, head_dim;
  __device__ void operator()(int64_t i) const {  // row, head
    const T *a = dout + i * head_dim, *b = out + i * head_dim;
    float sum = 0;
    for (int d = lane(); d < head_dim; d += warp_lanes) sum = fmaf(load(a + d), load(b + d), sum);
    sum = warp_sum(sum);
    if (lane() == 0) delta[i % heads * rows + i / heads] = sum;
  }
};

/// What both halves of the backward pass have.
template <class T>
struct Gradient {
  Rows<T> rows;
  T* dqkv;
  const T* dout;
  const float *lse, *delta;

  __device__ const T* output(int64_t row, int head) const { return dout + (row * rows.heads + head) * rows.head_dim; }
  /// From q . k and dout . v: the probability that meets the value, and the derivative by q . k.
  __device__ void pair(int64_t query, int head, int64_t key, float product, float dp, float& kept, float& ds) const {
    float slope = 0;
    const int64_t at = head * rows.count + query;
    const float p = expf(rows.score(product, slope) - lse[at]), keep = rows.keep(query, head, key);
    kept = p * keep;
    ds = slope * p * fmaf(keep, dp, -delta[at]);
  }
};

/// dq: a warp per (query row, head).
template <class T, int registers>
struct BackwardQuery {
  static constexpr int threads = warps * warp_lanes;
  Gradient<T> g;

  __device__ void operator()() const {
    const Rows<T>& rows = g.rows;
    const int64_t row = int64_t{blockIdx.x} * warps + threadIdx.x / warp_lanes;
    if (row >= rows.count) return;
    const int head = static_cast<int>(blockIdx.y), kv = head / (rows.heads / rows.kv_heads), n = rows.head_dim;
    float* query = own_shared(shared_floats(n, 2, 1));
    float *dout = query + n, *weights = dout + n;
    fetch(query, rows.query(row, head), n);
    fetch(dout, g.output(row, head), n);
    __syncwarp();
    int64_t begin = 0, end = 0;
    rows.segment_of(row, begin, end);
    if (rows.window > 0 && row - rows.window + 1 > begin) begin = row - rows.window + 1;
    float acc[registers] = {};
    for (int64_t first = begin; first <= row; first += warp_lanes) {
      const int64_t key = first + lane();
      const int keys = static_cast<int>(row - first + 1 < warp_lanes ? row - first + 1 : warp_lanes);
      float kept = 0, ds = 0;
      if (lane() < keys) {
        g.pair(row, head, key, dot(query, rows.key(key, kv), n), dot(dout, rows.value(key, kv), n), kept, ds);
      }
      weights[lane()] = ds;
      __syncwarp();
      add_rows(acc, weights, keys, n, [&](int j) { return rows.key(first + j, kv); });
      __syncwarp();
    }
    store_row(g.dqkv + row * rows.width() + int64_t{head} * n, acc, 1, n);
  }
};

/// dk and dv: a warp per (key row, key head), over the query heads of its group and their rows in order.
template <class T, int registers>
struct BackwardKey {
  static constexpr int threads = warps * warp_lanes;
  Gradient<T> g;

  __device__ void operator()() const {
    const Rows<T>& rows = g.rows;
    const int64_t row = int64_t{blockIdx.x} * warps + threadIdx.x / warp_lanes;
    if (row >= rows.count) return;
    const int kv = static_cast<int>(blockIdx.y), group = rows.heads / rows.kv_heads, n = rows.head_dim;
    float* key = own_shared(shared_floats(n, 2, 2));
    float *value = key + n, *key_weights = value + n, *value_weights = key_weights + warp_lanes;
    fetch(key, rows.key(row, kv), n);
    fetch(value, rows.value(row, kv), n);
    __syncwarp();
    int64_t begin = 0, end = 0;
    rows.segment_of(row, begin, end);
    if (rows.window > 0 && row + rows.window < end) end = row + rows.window;
    float dk[registers] = {}, dv[registers] = {};
    for (int head = kv * group; head < (kv + 1) * group; ++head) {
      for (int64_t first = row; first < end; first += warp_lanes) {
        const int64_t query = first + lane();
        const int queries = static_cast<int>(end - first < warp_lanes ? end - first : warp_lanes);
        float kept = 0, ds = 0;
        if (lane() < queries) {
          g.pair(query, head, row, dot(key, rows.query(query, head), n), dot(value, g.output(query, head), n), kept,
                 ds);
        }
        key_weights[lane()] = ds;
        value_weights[lane()] = kept;
        __syncwarp();
        add_rows(dk, key_weights, queries, n, [&](int j) { return rows.query(first + j, head); });
        add_rows(dv, value_weights, queries, n, [&](int j) { return g.output(first + j, head); });
        __syncwarp();
      }
    }
    T* to = g.dqkv + row * rows.width() + int64_t{rows.heads + kv} * n;
    store_row(to, dk, 1, n);
    store_row(to + int64_t{rows.kv_heads} * n, dv, 1, n);
  }
};

/// f(std::integral_constant of the registers that a lane needs for a row of the head).
template <class F>
void with_registers(int64_t head_dim, const F& f) {
  if (head_dim <= 32) return f(std::integral_constant<int, 1>{});
  if (head_dim <= 64) return f(std::integral_constant<int, 2>{});
  if (head_dim <= 128) return f(std::integral_constant<int, 4>{});
  if (head_dim <= 256) return f(std::integral_constant<int, 8>{});
  f(std::integral_constant<int, 32>{});
}

void check_attention(const Tensor& qkv, const Batch& batch, const AttentionShape& s, const Dropout& dropout) {
  LLMTRAIN_CHECK(s.heads > 0 && s.kv_heads > 0 && s.heads % s.kv_heads == 0, "key heads divide the heads");
  LLMTRAIN_CHECK(s.head_dim > 0 && s.head_dim <= largest_head_dim && s.window >= 0, "head dimension and window");
  LLMTRAIN_CHECK(qkv.rank == 2 && qkv.dim(1) == (s.heads + 2 * s.kv_heads) * s.head_dim,
                 "qkv must be [N, (H + 2 G) D]");
  LLMTRAIN_CHECK(batch.tokens == qkv.dim(0) && batch.segment_count <= batch.tokens,
                 "qkv and the batch differ in rows, or there are empty segments");
  LLMTRAIN_CHECK(dropout.probability >= 0 && dropout.probability < 1, "dropout probability must be in [0, 1)");
}

/// Whether tensor cores do it.
bool is_tiled(const Tensor& qkv, const AttentionShape& s) {
  return qkv.dtype == DType::bf16 && s.head_dim <= largest_tiled;
}
/// f(std::integral_constant of the columns of a tile).
template <class F>
void with_columns(int64_t head_dim, const F& f) {
  if (head_dim <= 32) return f(std::integral_constant<int, 32>{});
  if (head_dim <= 64) return f(std::integral_constant<int, 64>{});
  if (head_dim <= 96) return f(std::integral_constant<int, 96>{});
  f(std::integral_constant<int, 128>{});
}
/// The workspace: delta [H, N], then the tiles before each segment.
TiledBatch plan_tiles(const Tensor& qkv, const Batch& batch, const AttentionShape& shape, const Dropout& dropout,
                      const Tensor& workspace, Stream& stream) {
  auto* tiles = static_cast<int32_t*>(workspace.data) + shape.heads * batch.tokens;
  for_each_warp(1, stream, CountTiles{batch.segments.as<int32_t>(), tiles, batch.segment_count});
  return {Rows<bf16>(qkv, batch, shape, dropout), tiles};
}
Grid grid_of_tiles(const Batch& batch, int64_t heads) {
  const int64_t most = batch.tokens / tile_rows + batch.segment_count;
  return {static_cast<unsigned>(most), static_cast<unsigned>(heads)};
}

Grid grid_of(int64_t rows, int64_t heads) {
  return {static_cast<unsigned>((rows + warps - 1) / warps), static_cast<unsigned>(heads)};
}
int shared_bytes(int64_t head_dim, int rows, int weights) {
  return warps * shared_floats(head_dim, rows, weights) * static_cast<int>(sizeof(float));
}

}  // namespace

int64_t attention_workspace_bytes(const AttentionShape& shape, int64_t rows) {
  return (shape.heads * rows + rows + 1) * static_cast<int64_t>(sizeof(float));
}

void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv, const Batch& batch,
                       const AttentionShape& shape, const Dropout& dropout, const Tensor& workspace, Stream& stream) {
  check_attention(qkv, batch, shape, dropout);
  const ProfileSpan span("attention_forward", [&] { return traffic({&qkv, &out}); });
  LLMTRAIN_CHECK(out.dtype == qkv.dtype && out.numel() == batch.tokens * shape.heads * shape.head_dim,
                 "out must be [N, H D] in qkv's dtype");
  LLMTRAIN_CHECK(workspace.bytes() >= attention_workspace_bytes(shape, batch.tokens), "the workspace is too small");
  if (is_tiled(qkv, shape)) {
    const TiledBatch tiled = plan_tiles(qkv, batch, shape, dropout, workspace, stream);
    return with_columns(shape.head_dim, [&]<int D>(std::integral_constant<int, D>) {
      using Kernel = TiledForward<D>;
      launch(grid_of_tiles(batch, shape.heads), stream, Kernel{tiled, out.as<bf16>(), lse.as<float>()}, Kernel::shared);
    });
  }
  dispatch(qkv, [&]<class T>(T*) {
    with_registers(shape.head_dim, [&]<int registers>(std::integral_constant<int, registers>) {
      launch(grid_of(batch.tokens, shape.heads), stream,
             Forward<T, registers>{Rows<T>(qkv, batch, shape, dropout), out.as<T>(), lse.as<float>()},
             shared_bytes(shape.head_dim, 1, 1));
    });
  });
}

void attention_backward(const AttentionBackward& args, const Batch& batch, const AttentionShape& shape,
                        const Dropout& dropout, const Tensor& workspace, Stream& stream) {
  check_attention(args.qkv, batch, shape, dropout);
  const ProfileSpan span("attention_backward", [&] { return traffic({&args.qkv, &args.out, &args.dout, &args.dqkv}); });
  LLMTRAIN_CHECK(args.dqkv.dtype == args.qkv.dtype && args.dqkv.numel() == args.qkv.numel(), "dqkv must be like qkv");
  LLMTRAIN_CHECK(workspace.bytes() >= attention_workspace_bytes(shape, batch.tokens), "the workspace is too small");
  auto* delta = static_cast<float*>(workspace.data);
  const auto heads = static_cast<int>(shape.heads), head_dim = static_cast<int>(shape.head_dim);
  dispatch(args.qkv, [&]<class T>(T*) {
    for_each_warp(batch.tokens * shape.heads, stream,
                  Delta<T>{args.dout.as<T>(), args.out.as<T>(), delta, batch.tokens, heads, head_dim});
  });
  if (is_tiled(args.qkv, shape)) {
    const TiledGradient gradient{plan_tiles(args.qkv, batch, shape, dropout, workspace, stream), args.dqkv.as<bf16>(),
                                 args.dout.as<bf16>(), args.lse.as<float>(), delta};
    return with_columns(shape.head_dim, [&]<int D>(std::integral_constant<int, D>) {
      using Keys = TiledBackwardKey<D>;
      using Queries = TiledBackwardQuery<D>;
      launch(grid_of_tiles(batch, shape.kv_heads), stream, Keys{gradient}, Keys::shared);
      launch(grid_of_tiles(batch, shape.heads), stream, Queries{gradient}, Queries::shared);
    });
  }
  dispatch(args.qkv, [&]<class T>(T*) {
    const Gradient<T> gradient{Rows<T>(args.qkv, batch, shape, dropout), args.dqkv.as<T>(), args.dout.as<T>(),
                               args.lse.as<float>(), delta};
    with_registers(shape.head_dim, [&]<int registers>(std::integral_constant<int, registers>) {
      launch(grid_of(batch.tokens, shape.heads), stream, BackwardQuery<T, registers>{gradient},
             shared_bytes(shape.head_dim, 2, 1));
      launch(grid_of(batch.tokens, shape.kv_heads), stream, BackwardKey<T, registers>{gradient},
             shared_bytes(shape.head_dim, 2, 2));
    });
  });
}

}  // namespace llmtrain
