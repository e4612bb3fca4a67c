// Attention to cached keys and values by the kernels of attention_forward, which read them from the cache. On tensor
// cores a tile holds the query heads of one token that read the same keys.

#include "kernels/cuda/attention_cached_tiles.cuh"
#include "kernels/cuda/attention_row_forward.cuh"
#include "kernels/cuda/attention_tiles.cuh"

namespace llmtrain::cuda {

namespace {

/// Keys of the query's own sequence in the cache.
template <class T>
struct CachedKeys {
  const T* cache;
  Places places;

  __device__ KeyRows<T> of(const Rows<T>& rows, int64_t row, int kv) const {
    const int64_t stride = int64_t{2} * rows.kv_heads * rows.head_dim;
    if (!places.inside(row)) return {cache, cache, stride, -1};
    const int64_t position = places.positions[row];
    const T* keys = cache + (places.own(row) - position) * stride + int64_t{kv} * rows.head_dim;
    return {keys, keys + int64_t{rows.kv_heads} * rows.head_dim, stride, position};
  }
};

/// One block per row, up to 64 heads of a group, and key head (blockIdx.y).
template <int D, class H>
struct CachedTile {
  static constexpr int threads = tile_threads;
  static constexpr int shared = tiled_shared_bytes(D);
  TiledBatch<H> batch;
  CachedKeys<H> source;
  H* out;
  float* lse;
  int64_t tiles;  ///< per row and key head

  __device__ void operator()() const {
    const Rows<H>& rows = batch.rows;
    const int64_t row = blockIdx.x / tiles;
    const int kv = static_cast<int>(blockIdx.y), group = rows.heads / rows.kv_heads, n = rows.head_dim;
    const int first_head = static_cast<int>(blockIdx.x % tiles) * tile_rows;
    const int heads = group - first_head < tile_rows ? group - first_head : tile_rows;
    const int head = kv * group + first_head;
    const KeyRows<H> own = source.of(rows, row, kv);
    const auto position = static_cast<int>(own.position), length = position + 1;
    const auto stride = static_cast<int>(own.stride);
    H* to = out + (row * rows.heads + head) * n;
    if (position < 0) {
      for (int i = static_cast<int>(threadIdx.x); i < heads * n; i += threads) store(to + i, NAN);
      return;
    }
    const QueryTile<H> tile{{rows.query(row, head), n, heads, n}, 0,        {own.keys, stride, length, n},
                            {own.values, stride, length, n},      position, 0};
    const TileResult<D, H> result = attend_tile<D>(batch, tile, [](float(&)[key_rows(D) / 8][4], int) {});
    const int warp_row = static_cast<int>(threadIdx.x) / warp_lanes * 16;
    store_rows(
        result.values, warp_row, heads, n, [&](int r) { return to + int64_t{r} * n; },
        [&](int half) { return 1 / result.sum[half]; });
    if (lane() % 4 != 0) return;
    for (int half = 0; half < 2; ++half) {
      const int r = warp_row + lane() / 4 + 8 * half;
      if (r < heads) lse[(head + r) * rows.count + row] = fmaf(result.highest[half], ln_2, logf(result.sum[half]));
    }
  }
};

}  // namespace

void attention_cached_tiles(const Tensor& out, const Tensor& lse, const Tensor& qkv, const Tensor& cache,
                            const Batch& batch, const AttentionShape& shape, Stream& stream) {
  const Places places(cache, batch, shape);
  if (is_tiled(qkv, shape)) {
    const int64_t tiles = (shape.heads / shape.kv_heads + tile_rows - 1) / tile_rows;
    return with_half(qkv, [&]<class H>(H*) {
      const TiledBatch<H> tiled{Rows<H>(qkv, batch, shape, Dropout{}), nullptr};
      with_columns(shape.head_dim, [&]<int D>(std::integral_constant<int, D>) {
        using Kernel = CachedTile<D, H>;
        launch({batch.tokens * tiles, shape.kv_heads}, stream,
               Kernel{tiled, {cache.as<H>(), places}, out.as<H>(), lse.as<float>(), tiles}, Kernel::shared);
      });
    });
  }
  dispatch(qkv, [&]<class T>(T*) {
    with_registers(shape.head_dim, [&]<int registers>(std::integral_constant<int, registers>) {
      launch(row_grid(batch.tokens, shape.heads), stream,
             RowForward<T, registers, CachedKeys<T>>{
                 Rows<T>(qkv, batch, shape, Dropout{}), {cache.as<T>(), places}, out.as<T>(), lse.as<float>()},
             row_shared_bytes(shape.head_dim, 1, 1));
    });
  });
}

}  // namespace llmtrain::cuda
