#include "core/profile.hpp"
#include "kernels/attention_checks.hpp"
#include "kernels/cuda/attention_backward_tiles.cuh"
#include "kernels/cuda/attention_row_forward.cuh"
#include "kernels/cuda/cudnn_attention.hpp"

// Attention for any head dimension, in fp32. (bf16 and fp16 heads of up to 256 elements: attention_tiles.cuh and
// attention_backward_tiles.cuh.) A warp has one row, of queries or of keys, and processes the rows of the other side 32
// at a time, one per lane, then 32 elements of the head per lane's register. Every sum has a fixed order; no sum is
// shared among warps.

namespace llmtrain {

namespace {

using namespace cuda;

/// delta[head, row] = dout . out. A warp has several heads, with `lanes` lanes for each; the order of a sum depends
/// only on the head's dimension and type.
template <class T>
struct Delta {
  static constexpr int64_t size = wide<T>;
  const T *dout, *out;
  float* delta;
  int64_t rows;
  int heads, head_dim, lanes;

  Delta(const AttentionBackward& args, float* to, int64_t tokens, const AttentionShape& s)
      : dout(args.dout.as<T>()),
        out(args.out.as<T>()),
        delta(to),
        rows(tokens),
        heads(static_cast<int>(s.heads)),
        head_dim(static_cast<int>(s.head_dim)),
        lanes(row_lanes(s.head_dim, size)) {}
  int64_t warps() const { return blocks_for(rows * heads, warp_lanes / lanes); }

  __device__ void operator()(int64_t warp) const {
    const int first = lane() & (lanes - 1);
    const int64_t i = warp * (warp_lanes / lanes) + lane() / lanes;  // index of (row, head)
    const bool is_there = i < rows * heads;
    float sum = 0;
    for (int64_t d = first * size; is_there && d < head_dim; d += lanes * size) {
      const PackOf<size> a = load_pack<size>(dout + i * head_dim, d, head_dim),
                         b = load_pack<size>(out + i * head_dim, d, head_dim);
      LLMTRAIN_UNROLL
      for (int k = 0; k < size; ++k) sum = fmaf(a.v[k], b.v[k], sum);
    }
    for (int distance = lanes / 2; distance > 0; distance /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
    if (is_there && first == 0) delta[i % heads * rows + i / heads] = sum;
  }
};

/// Operands of both halves of the backward pass.
template <class T>
struct Gradient {
  Rows<T> rows;
  T* dqkv;
  const T* dout;
  const float *lse, *delta;

  __device__ const T* output(int64_t row, int head) const { return dout + (row * rows.heads + head) * rows.head_dim; }
  /// Computes, from q . k and dout . v, the probability that multiplies the value, and the derivative by q . k.
  __device__ void pair(const KernelDropout& dropout, int64_t query, int head, int64_t key, float product, float dp,
                       float& kept, float& ds) const {
    float slope = 0;
    const int64_t at = head * rows.count + query;
    const float p = expf(rows.score(product, slope) - lse[at]), keep = rows.keep(dropout, query, head, key);
    kept = p * keep;
    ds = slope * p * fmaf(keep, dp, -delta[at]);
  }
};

/// dq: one warp per (query row, head).
template <class T, int registers>
struct BackwardQuery {
  static constexpr int threads = row_warps * warp_lanes;
  Gradient<T> g;

  __device__ void operator()() const {
    const Rows<T>& rows = g.rows;
    const int64_t row = int64_t{blockIdx.x} * row_warps + threadIdx.x / warp_lanes;
    if (row >= rows.count) return;
    const int head = static_cast<int>(blockIdx.y), kv = head / (rows.heads / rows.kv_heads), n = rows.head_dim;
    float* query = own_shared(row_shared_floats(n, 2, 1));
    float *dout = query + n, *weights = dout + n;
    fetch(query, rows.query(row, head), n);
    fetch(dout, g.output(row, head), n);
    __syncwarp();
    int64_t begin = 0, end = 0;
    rows.segment_of(row, begin, end);
    if (rows.window > 0 && row - rows.window + 1 > begin) begin = row - rows.window + 1;
    const KernelDropout dropout = rows.dropout.resolved();
    float acc[registers] = {};
    for (int64_t first = begin; first <= row; first += warp_lanes) {
      const int64_t key = first + lane();
      const int keys = static_cast<int>(row - first + 1 < warp_lanes ? row - first + 1 : warp_lanes);
      float kept = 0, ds = 0;
      if (lane() < keys) {
        g.pair(dropout, row, head, key, dot(query, rows.key(key, kv), n), dot(dout, rows.value(key, kv), n), kept, ds);
      }
      weights[lane()] = ds;
      __syncwarp();
      add_rows(acc, weights, keys, n, [&](int j) { return rows.key(first + j, kv); });
      __syncwarp();
    }
    store_row(g.dqkv + row * rows.width() + int64_t{head} * n, acc, 1, n);
  }
};

/// dk and dv: one warp per (key row, key head), over the query heads of its group and their rows in order.
template <class T, int registers>
struct BackwardKey {
  static constexpr int threads = row_warps * warp_lanes;
  Gradient<T> g;

  __device__ void operator()() const {
    const Rows<T>& rows = g.rows;
    const int64_t row = int64_t{blockIdx.x} * row_warps + threadIdx.x / warp_lanes;
    if (row >= rows.count) return;
    const int kv = static_cast<int>(blockIdx.y), group = rows.heads / rows.kv_heads, n = rows.head_dim;
    float* key = own_shared(row_shared_floats(n, 2, 2));
    float *value = key + n, *key_weights = value + n, *value_weights = key_weights + warp_lanes;
    fetch(key, rows.key(row, kv), n);
    fetch(value, rows.value(row, kv), n);
    __syncwarp();
    int64_t begin = 0, end = 0;
    rows.segment_of(row, begin, end);
    if (rows.window > 0 && row + rows.window < end) end = row + rows.window;
    const KernelDropout dropout = rows.dropout.resolved();
    float dk[registers] = {}, dv[registers] = {};
    for (int head = kv * group; head < (kv + 1) * group; ++head) {
      for (int64_t first = row; first < end; first += warp_lanes) {
        const int64_t query = first + lane();
        const int queries = static_cast<int>(end - first < warp_lanes ? end - first : warp_lanes);
        float kept = 0, ds = 0;
        if (lane() < queries) {
          g.pair(dropout, query, head, row, dot(key, rows.query(query, head), n), dot(value, g.output(query, head), n),
                 kept, ds);
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

/// Workspace: delta [H, N], then the number of tiles before each segment.
template <class H>
TiledBatch<H> plan_tiles(const Tensor& qkv, const Batch& batch, const AttentionShape& shape, const Dropout& dropout,
                         const Tensor& workspace, Stream& stream) {
  auto* tiles = static_cast<int32_t*>(workspace.data) + shape.heads * batch.tokens;
  for_each_warp(1, stream, CountTiles{batch.segments.as<int32_t>(), tiles, batch.segment_count});
  return {Rows<H>(qkv, batch, shape, dropout), tiles};
}
Grid grid_of_tiles(const Batch& batch, int64_t heads) { return tile_grid(batch.tokens, batch.segment_count, heads); }

int64_t own_workspace_bytes(const AttentionShape& shape, int64_t rows) {
  return (shape.heads * rows + rows + 1) * static_cast<int64_t>(sizeof(float));
}

}  // namespace

int64_t attention_workspace_bytes(const AttentionShape& shape, int64_t rows) {
  check_attention_shape(shape);
  return std::max(own_workspace_bytes(shape, rows), cudnn_workspace_bytes(shape, rows));
}

void attention_forward(const Tensor& out, const Tensor& lse, const Tensor& qkv, const Batch& batch,
                       const AttentionShape& shape, const Dropout& dropout, const Tensor& workspace, Stream& stream) {
  check_attention(qkv, batch, shape, dropout);
  check_attention_output(out, lse, qkv, shape);
  LLMTRAIN_CHECK(workspace.bytes() >= attention_workspace_bytes(shape, batch.tokens), "the workspace is too small");
  const ProfileSpan span("attention_forward", [&] { return traffic({&qkv, &out}); });
  if (cudnn_attention_forward(out, lse, qkv, batch, shape, dropout, workspace, stream)) return;
  if (is_tiled(qkv, shape)) {
    return with_half(qkv, [&]<class H>(H*) {
      const auto tiled = plan_tiles<H>(qkv, batch, shape, dropout, workspace, stream);
      with_columns(shape.head_dim, [&]<int D>(std::integral_constant<int, D>) {
        using Kernel = TiledForward<D, H>;
        launch(grid_of_tiles(batch, shape.heads), stream, Kernel{tiled, out.as<H>(), lse.as<float>()}, Kernel::shared);
      });
    });
  }
  dispatch(qkv, [&]<class T>(T*) {
    with_registers(shape.head_dim, [&]<int registers>(std::integral_constant<int, registers>) {
      launch(row_grid(batch.tokens, shape.heads), stream,
             RowForward<T, registers, SegmentKeys<T>>{
                 Rows<T>(qkv, batch, shape, dropout), {}, out.as<T>(), lse.as<float>()},
             row_shared_bytes(shape.head_dim, 1, 1));
    });
  });
}

void attention_backward(const AttentionBackward& args, const Batch& batch, const AttentionShape& shape,
                        const Dropout& dropout, const Tensor& workspace, Stream& stream) {
  check_attention(args.qkv, batch, shape, dropout);
  check_attention_gradients(args, shape);
  LLMTRAIN_CHECK(workspace.bytes() >= attention_workspace_bytes(shape, batch.tokens), "the workspace is too small");
  const ProfileSpan span("attention_backward", [&] { return traffic({&args.qkv, &args.out, &args.dout, &args.dqkv}); });
  if (cudnn_attention_backward(args, batch, shape, dropout, workspace, stream)) return;
  auto* delta = static_cast<float*>(workspace.data);
  dispatch(args.qkv, [&]<class T>(T*) {
    const Delta<T> deltas(args, delta, batch.tokens, shape);
    for_each_warp(deltas.warps(), stream, deltas);
  });
  if (is_tiled(args.qkv, shape)) {
    return with_half(args.qkv, [&]<class H>(H*) {
      const TiledGradient<H> gradient{plan_tiles<H>(args.qkv, batch, shape, dropout, workspace, stream),
                                      args.dqkv.as<H>(), args.dout.as<H>(), args.lse.as<float>(), delta};
      with_columns(shape.head_dim, [&]<int D>(std::integral_constant<int, D>) {
        const auto start = [&](int64_t heads, const auto& kernel) {
          launch(grid_of_tiles(batch, heads), stream, kernel, kernel.shared);
        };
        if constexpr (is_wide(D)) {  // a thread's registers hold the sums of one
          start(shape.kv_heads, TiledBackwardKey<D, H, true, false>{gradient});
          start(shape.kv_heads, TiledBackwardKey<D, H, false, true>{gradient});
        } else {
          start(shape.kv_heads, TiledBackwardKey<D, H, true, true>{gradient});
        }
        start(shape.heads, TiledBackwardQuery<D, H>{gradient});
      });
    });
  }
  dispatch(args.qkv, [&]<class T>(T*) {
    const Gradient<T> gradient{Rows<T>(args.qkv, batch, shape, dropout), args.dqkv.as<T>(), args.dout.as<T>(),
                               args.lse.as<float>(), delta};
    with_registers(shape.head_dim, [&]<int registers>(std::integral_constant<int, registers>) {
      launch(row_grid(batch.tokens, shape.heads), stream, BackwardQuery<T, registers>{gradient},
             row_shared_bytes(shape.head_dim, 2, 1));
      launch(row_grid(batch.tokens, shape.kv_heads), stream, BackwardKey<T, registers>{gradient},
             row_shared_bytes(shape.head_dim, 2, 2));
    });
  });
}

}  // namespace llmtrain
