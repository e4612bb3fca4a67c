#pragma once
// Attention on tensor cores (FlashAttention-2, Dao 2023) for bf16 and fp16 heads of up to 256 elements. Tiles are
// counted from the start of a segment, so that its bits do not depend on the rest of the batch; tiles outside the
// causal or window mask are skipped. While a tile of the other side is processed, the next one is loaded into shared
// memory. The backward pass: attention_backward_tiles.cuh.

#include <cmath>
#include <limits>

#include "kernels/cuda/attention_dropout.cuh"
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/cuda/tile_fill.cuh"

namespace llmtrain::cuda {

inline constexpr float log2_e = 1.44269504f, ln_2 = 0.693147181f;

/// 2^x to two units in the last place, 0 where that is less than 2^-126 (PTX ISA, "ex2").
__device__ inline float exp2_approx(float x) {
#if defined(__CUDACC__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  const float y = std::exp2(x);
  return y < std::numeric_limits<float>::min() ? 0.0f : y;
#endif
}

/// begin[s]: number of tiles before segment s; [segments + 1]. One warp.
struct CountTiles {
  const int32_t* segments;
  int32_t* begin;
  int64_t count;
  __device__ void operator()(int64_t) const {
    int before = 0;
    for (int64_t first = 0; first < count; first += warp_lanes) {
      const int64_t s = first + lane();
      const int own = s < count ? (segments[s + 1] - segments[s] + tile_rows - 1) / tile_rows : 0;
      int sum = own;  // prefix sum over the lanes up to this one
      for (int distance = 1; distance < warp_lanes; distance *= 2) {
        const int other = __shfl_sync(0xFFFFFFFFu, sum, lane() >= distance ? lane() - distance : 0);
        if (lane() >= distance) sum += other;
      }
      if (s < count) begin[s] = before + sum - own;
      before += __shfl_sync(0xFFFFFFFFu, sum, warp_lanes - 1);
    }
    if (lane() == 0) begin[count] = before;
  }
};

/// Tile of a block: rows [begin + first, ...) of the batch, in a segment of `length` rows from `begin` on.
struct TilePosition {
  int64_t begin;
  int length, first;

  /// Finds the tile of this block, the longest work first. Returns false if there are fewer tiles.
  __device__ bool find(const int32_t* segments, const int32_t* tiles, int64_t count, bool last_first) {
    const int total = tiles[count];
    if (static_cast<int>(blockIdx.x) >= total) return false;
    const int index = last_first ? total - 1 - static_cast<int>(blockIdx.x) : static_cast<int>(blockIdx.x);
    int64_t low = 0, high = count;  // tiles[low] <= index < tiles[high]
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (tiles[middle] <= index ? low : high) = middle;
    }
    begin = segments[low];
    length = segments[low + 1] - segments[low];
    first = (index - tiles[low]) * tile_rows;
    return true;
  }
};

/// Stores rows [first, first + 16) of the segment from a product's result, times factor(half); half 0 is row g, 1 is g
/// + 8.
template <int tiles, class Row, class Factor>
__device__ void store_rows(const float (&c)[tiles][4], int first, int length, int head_dim, const Row& row,
                           const Factor& factor) {
  const int g = lane() / 4, t = lane() % 4;
  LLMTRAIN_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int r = first + g + 8 * half;
    if (r >= length) continue;
    auto* to = row(r);
    LLMTRAIN_UNROLL
    for (int i = 0; i < tiles; ++i) {
      const float scale = factor(half);
      store_pack(to, 8 * i + 2 * t, head_dim, PackOf<2>{{c[i][2 * half] * scale, c[i][2 * half + 1] * scale}});
    }
  }
}

/// Sum or maximum over the four lanes of a row.
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, 1);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2);
}
__device__ inline float quad_maximum(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xFFFFFFFFu, x, 2));
}

template <class H>
struct TiledBatch {
  Rows<H> rows;
  const int32_t* tiles;  ///< output of CountTiles

  __device__ TileRows<H> rows_from(const H* first, const TilePosition& place) const {
    return {first, static_cast<int>(rows.width()), place.length, rows.head_dim};
  }
  __device__ TileRows<H> queries(const TilePosition& place, int head) const {
    return rows_from(rows.query(place.begin, head), place);
  }
  __device__ TileRows<H> keys(const TilePosition& place, int kv) const {
    return rows_from(rows.key(place.begin, kv), place);
  }
  __device__ TileRows<H> values(const TilePosition& place, int kv) const {
    return rows_from(rows.value(place.begin, kv), place);
  }
  __device__ bool drops() const { return rows.sequences != nullptr; }
  __device__ SegmentDropout dropout(const TilePosition& place, int head) const {
    return {rows.dropout.resolved(), static_cast<uint64_t>(rows.sequences[place.begin]), rows.first_head + head,
            rows.offsets[place.begin]};
  }
  __device__ bool visible(int query, int key, int length) const {
    return key <= query && query < length && (rows.window == 0 || key > query - rows.window);
  }
  /// True if all `keys` keys from `key` on are visible to all `queries` queries from `query` on.
  __device__ bool all_visible(int query, int queries, int key, int keys, int length) const {
    return key + keys - 1 <= query && query + queries <= length &&
           (rows.window == 0 || key > query + queries - 1 - rows.window);
  }
  __device__ int first_key(int query) const {
    return rows.window == 0 || query < rows.window ? 0 : query - static_cast<int>(rows.window) + 1;
  }
  /// exp(score) is 2^(unit() product) or, for capped scores, 2^(unit() cap(product)).
  __device__ bool is_capped() const { return rows.softcap > 0; }
  __device__ float unit() const { return (is_capped() ? rows.softcap : rows.scale) * log2_e; }
  __device__ float cap(float product) const { return tanhf(product * (rows.scale / rows.softcap)); }
};

/// Queries of a block and the keys that they may see. Row r of the tile is the query at position first + step r.
template <class H>
struct QueryTile {
  TileRows<H> queries;
  int first_row;  ///< row of `queries` that is row 0 of the tile
  TileRows<H> keys, values;
  int first, step;

  __device__ int query(int row) const { return first + step * row; }
  /// First position of the block that holds the queries.
  __device__ int block() const { return first / tile_rows * tile_rows; }
};

/// Softmax over the keys of a tile's queries, and their values. A warp has 16 queries, a thread two: g and g + 8.
template <int D, class H>
struct TileResult {
  float values[D / 8][4] = {};                ///< not normalised
  float highest[2] = {-INFINITY, -INFINITY};  ///< base-2 exponents
  float sum[2] = {};

  /// Factor of the sums so far for another tile's highest products; sets base, the new highest exponent, finite.
  __device__ void rescale(const float (&tile_highest)[2], float unit, float (&base)[2]) {
    float shrink[2];
    LLMTRAIN_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float now = fmaxf(highest[half], quad_maximum(tile_highest[half]) * unit);
      base[half] = now == -INFINITY ? 0.0f : now;  // a row without visible keys so far
      shrink[half] = exp2_approx(highest[half] - base[half]);
      highest[half] = now;
      sum[half] *= shrink[half];
    }
    LLMTRAIN_UNROLL
    for (int i = 0; i < D / 8; ++i) {
      LLMTRAIN_UNROLL
      for (int e = 0; e < 4; ++e) values[i][e] *= shrink[e / 2];
    }
  }
};

/// drop(scores, first): applies dropout to probabilities of keys from `first` on.
template <int D, class H, class Drop>
__device__ TileResult<D, H> attend_tile(const TiledBatch<H>& batch, const QueryTile<H>& tile, const Drop& drop) {
  constexpr int count = key_rows(D);
  const int warp_row = static_cast<int>(threadIdx.x) / warp_lanes * 16, g = lane() / 4, t = lane() % 4;
  const Tile<D, H> memory{dynamic_shared<H>()};
  const auto keys_of = [&](int stage) { return Tile<D, H>{memory.row(2 * stage * count)}; };
  const auto values_of = [&](int stage) { return Tile<D, H>{memory.row((2 * stage + 1) * count)}; };
  const auto fetch = [&](int stage, int first) {
    fill_tile<count>(keys_of(stage), tile.keys, first);
    fill_tile<count>(values_of(stage), tile.values, first);
  };

  const Tile<D, H> queries = keys_of(1);
  fill_tile<tile_rows>(queries, tile.queries, tile.first_row);
  const int length = tile.keys.rows, end = std::min(tile.block() + tile_rows, length);
  const int first_tile = batch.first_key(tile.block()) / count * count;
  fetch(0, first_tile);
  wait_for_copies();
  __syncthreads();
  Pair query[D / 16][4];
  LLMTRAIN_UNROLL
  for (int k = 0; k < D / 16; ++k) queries.a(query[k], warp_row, 16 * k);

  const float unit = batch.unit();
  TileResult<D, H> result;
  int stage = 0;
  for (int first = first_tile; first < end; first += count, stage ^= 1) {
    wait_for_copies();
    __syncthreads();  // this stage has arrived, and no thread reads the other one
    if (first + count < end) fetch(stage ^ 1, first + count);
    const Tile<D, H> keys = keys_of(stage), values = values_of(stage);
    float scores[count / 8][4] = {};
    LLMTRAIN_UNROLL
    for (int k = 0; k < D / 16; ++k) {
      multiply_row<H>(scores, query[k], [&](Pair(&m)[4], int column) { keys.b_transposed(m, column, 16 * k); });
    }
    if (batch.is_capped()) {
      LLMTRAIN_UNROLL
      for (int i = 0; i < count / 8; ++i) {
        LLMTRAIN_UNROLL
        for (int e = 0; e < 4; ++e) scores[i][e] = batch.cap(scores[i][e]);
      }
    }
    // In a long segment only the tiles at the mask's borders test every score.
    const int tested = tile.step == 0 ? 1 : tile_rows;
    if (!batch.all_visible(tile.first, tested, first, count, length)) {
      LLMTRAIN_UNROLL
      for (int i = 0; i < count / 8; ++i) {
        LLMTRAIN_UNROLL
        for (int e = 0; e < 4; ++e) {
          const int q = tile.query(warp_row + g + 8 * (e / 2)), key = first + 8 * i + 2 * t + e % 2;
          if (!batch.visible(q, key, length)) scores[i][e] = -INFINITY;
        }
      }
    }
    float tile_highest[2] = {-INFINITY, -INFINITY};
    LLMTRAIN_UNROLL
    for (int i = 0; i < count / 8; ++i) {
      LLMTRAIN_UNROLL
      for (int e = 0; e < 4; ++e) tile_highest[e / 2] = fmaxf(tile_highest[e / 2], scores[i][e]);
    }
    float base[2];
    result.rescale(tile_highest, unit, base);
    LLMTRAIN_UNROLL
    for (int i = 0; i < count / 8; ++i) {
      LLMTRAIN_UNROLL
      for (int e = 0; e < 4; ++e) {
        const float p = exp2_approx(fmaf(scores[i][e], unit, -base[e / 2]));
        result.sum[e / 2] += p;
        scores[i][e] = p;
      }
    }
    drop(scores, first);
    LLMTRAIN_UNROLL
    for (int k = 0; k < count / 16; ++k) {
      Pair probabilities[4];
      as_operand<H>(probabilities, scores, k);
      multiply_row<H>(result.values, probabilities, [&](Pair(&m)[4], int column) { values.b(m, 16 * k, column); });
    }
  }
  for (float& s : result.sum) s = quad_sum(s);
  return result;
}

template <int D, class H>
struct TiledForward {
  static constexpr int threads = tile_threads;
  static constexpr int shared = tiled_shared_bytes(D);
  TiledBatch<H> batch;
  H* out;
  float* lse;

  __device__ void operator()() const {
    const Rows<H>& rows = batch.rows;
    TilePosition place{};
    if (!place.find(rows.segments, batch.tiles, rows.segment_count, true)) return;
    const int head = static_cast<int>(blockIdx.y), kv = head / (rows.heads / rows.kv_heads), n = rows.head_dim;
    const int warp_row = static_cast<int>(threadIdx.x) / warp_lanes * 16, g = lane() / 4, t = lane() % 4;
    const QueryTile<H> tile{batch.queries(place, head), place.first, batch.keys(place, kv),
                            batch.values(place, kv),    place.first, 1};
    constexpr int tiles = key_rows(D) / 8;
    const auto drop = [&](float(&scores)[tiles][4], int first) {
      if (!batch.drops()) return;
      const SegmentDropout dropout = batch.dropout(place, head);
      const uint32_t kept = dropout.kept_keys<tiles>(place.first + warp_row, first);
      LLMTRAIN_UNROLL
      for (int i = 0; i < tiles; ++i) {
        LLMTRAIN_UNROLL
        for (int e = 0; e < 4; ++e) scores[i][e] *= dropout.factor(kept, 4 * i + e);
      }
    };
    const TileResult<D, H> result = attend_tile<D>(batch, tile, drop);
    const int first_row = place.first + warp_row;
    store_rows(
        result.values, first_row, place.length, n,
        [&](int r) { return out + ((place.begin + r) * rows.heads + head) * n; },
        [&](int half) { return 1 / result.sum[half]; });
    LLMTRAIN_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int r = first_row + g + 8 * half;
      if (t == 0 && r < place.length) {
        lse[head * rows.count + place.begin + r] = fmaf(result.highest[half], ln_2, logf(result.sum[half]));
      }
    }
  }
};

}  // namespace llmtrain::cuda
