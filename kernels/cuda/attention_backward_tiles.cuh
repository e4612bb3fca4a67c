#pragma once
// The backward pass of attention on tensor cores, one kernel for keys and values (two for those of wide heads) and one
// for queries: every sum belongs to one warp and has a fixed order; the cost is that scores are computed twice, or
// three times.

#include "kernels/cuda/attention_tiles.cuh"

namespace llmtrain::cuda {

template <class H>
struct TiledGradient {
  TiledBatch<H> batch;
  H* dqkv;
  const H* dout;
  const float *lse, *delta;

  /// Gradient of a head's output.
  __device__ TileRows<H> outputs(const TilePosition& place, int head) const {
    const int n = batch.rows.head_dim, width = batch.rows.heads * n;
    return {dout + place.begin * width + int64_t{head} * n, width, place.length, n};
  }
  /// Statistics of a query row: log2(sum(exp(score))), and delta with the factor of the scaled term.
  struct alignas(8) RowSums {
    float lse, delta;
  };
  __device__ RowSums sums(float row_lse, float row_delta) const {
    return {row_lse * log2_e, row_delta * batch.rows.scale};
  }
  /// Turns products q . k and dout . v of a tile into the probabilities that multiply the values and the derivatives by
  /// q . k. Invisible elements are undefined. sums_of(i, e): statistics of the query of element [i][e]; kept(dropout):
  /// their dropout bits, called only with dropout.
  template <int tiles, class Sums, class Kept>
  __device__ void differentiate(float (&products)[tiles][4], float (&dp)[tiles][4], const TilePosition& place, int head,
                                const Sums& sums_of, const Kept& kept) const {
    if (batch.drops()) {
      const SegmentDropout dropout = batch.dropout(place, head);
      const uint32_t bits = kept(dropout);
      const auto factor = [&](int i, int e) { return dropout.factor(bits, 4 * i + e); };
      batch.is_capped() ? differentiate_as<true>(products, dp, sums_of, factor)
                        : differentiate_as<false>(products, dp, sums_of, factor);
    } else {
      const auto factor = [](int, int) { return 1.0f; };
      batch.is_capped() ? differentiate_as<true>(products, dp, sums_of, factor)
                        : differentiate_as<false>(products, dp, sums_of, factor);
    }
  }

 private:
  template <bool capped, int tiles, class Sums, class Factor>
  __device__ void differentiate_as(float (&products)[tiles][4], float (&dp)[tiles][4], const Sums& sums_of,
                                   const Factor& factor) const {
    const float unit = batch.unit(), scale = batch.rows.scale;
    LLMTRAIN_UNROLL
    for (int i = 0; i < tiles; ++i) {
      LLMTRAIN_UNROLL
      for (int e = 0; e < 4; ++e) {
        const RowSums row = sums_of(i, e);
        const float score = capped ? batch.cap(products[i][e]) : products[i][e];
        const float p = exp2_approx(fmaf(score, unit, -row.lse)), slope = capped ? fmaf(-score * score, p, p) : p;
        products[i][e] = p * factor(i, e);
        dp[i][e] = slope * fmaf(scale * factor(i, e), dp[i][e], -row.delta);
      }
    }
  }
};

/// dk or dv, or both, of a tile of keys, over the query heads of its group and their rows in order.
template <int D, class H, bool of_keys, bool of_values>
struct TiledBackwardKey {
  static constexpr int threads = tile_threads;
  static constexpr int shared = tiled_key_shared_bytes(D), count = other_rows(D);
  TiledGradient<H> gradient;

  __device__ void operator()() const {
    const Rows<H>& rows = gradient.batch.rows;
    TilePosition place{};
    if (!place.find(rows.segments, gradient.batch.tiles, rows.segment_count, false)) return;
    const int kv = static_cast<int>(blockIdx.y), group = rows.heads / rows.kv_heads, n = rows.head_dim;
    const int warp_row = static_cast<int>(threadIdx.x) / warp_lanes * 16, g = lane() / 4, t = lane() % 4;
    const Tile<D, H> keys{dynamic_shared<H>()}, values{keys.row(tile_rows)}, others{values.row(tile_rows)};
    const auto queries_of = [&](int stage) { return Tile<D, H>{others.row(2 * stage * count)}; };
    const auto outputs_of = [&](int stage) { return Tile<D, H>{others.row((2 * stage + 1) * count)}; };
    const auto sums_of = [](const Tile<D, H>& queries, int row) {  // in the padding
      return reinterpret_cast<typename TiledGradient<H>::RowSums*>(queries.row(row) + D);
    };
    const auto fetch = [&](int stage, int head, int first) {
      fill_tile<count>(queries_of(stage), gradient.batch.queries(place, head), first);
      fill_tile<count>(outputs_of(stage), gradient.outputs(place, head), first);
      const int thread = static_cast<int>(threadIdx.x);
      if (thread >= count) return;
      const bool wanted = first + thread < place.length;
      const int64_t at = head * rows.count + place.begin + first + (wanted ? thread : 0);
      auto* const sums = sums_of(queries_of(stage), thread);
      copy_async<sizeof(float)>(&sums->lse, gradient.lse + at, wanted);
      copy_async<sizeof(float)>(&sums->delta, gradient.delta + at, wanted);
    };

    fill_tile<tile_rows>(keys, gradient.batch.keys(place, kv), place.first);
    if constexpr (of_keys) fill_tile<tile_rows>(values, gradient.batch.values(place, kv), place.first);
    int end = place.length;  // end of the queries that see a key of the tile
    if (rows.window > 0 && place.first + tile_rows - 1 + rows.window < end) {
      end = place.first + tile_rows - 1 + static_cast<int>(rows.window);
    }
    float dk[D / 8][4] = {}, dv[D / 8][4] = {};
    int stage = 0;
    fetch(stage, kv * group, place.first);
    for (int head = kv * group; head < (kv + 1) * group; ++head) {
      for (int first = place.first; first < end; first += count, stage ^= 1) {
        wait_for_copies();
        __syncthreads();  // this stage has arrived, and no thread reads the other one
        const bool goes_on = first + count < end;
        const int next_head = goes_on ? head : head + 1, next_first = goes_on ? first + count : place.first;
        if (next_head < (kv + 1) * group) fetch(stage ^ 1, next_head, next_first);
        const Tile<D, H> queries = queries_of(stage), outputs = outputs_of(stage);
        float scores[count / 8][4] = {}, dp[count / 8][4] = {};  // [keys, queries]
        LLMTRAIN_UNROLL
        for (int k = 0; k < D / 16; ++k) {
          Pair a[4];
          keys.a(a, warp_row, 16 * k);
          multiply_row<H>(scores, a, [&](Pair(&m)[4], int column) { queries.b_transposed(m, column, 16 * k); });
          if constexpr (of_keys) {
            values.a(a, warp_row, 16 * k);
            multiply_row<H>(dp, a, [&](Pair(&m)[4], int column) { outputs.b_transposed(m, column, 16 * k); });
          }
        }
        gradient.differentiate(
            scores, dp, place, head,
            [&](int i, int e) {
              const auto row = *sums_of(queries, 8 * i + 2 * t + e % 2);
              return gradient.sums(row.lse, row.delta);
            },
            [&](const SegmentDropout& dropout) {
              return dropout.kept_queries<count / 8>(first, place.first + warp_row);
            });
        if (!gradient.batch.all_visible(first, count, place.first, tile_rows, place.length)) {
          LLMTRAIN_UNROLL
          for (int i = 0; i < count / 8; ++i) {
            LLMTRAIN_UNROLL
            for (int e = 0; e < 4; ++e) {
              const int q = first + 8 * i + 2 * t + e % 2, key = place.first + warp_row + g + 8 * (e / 2);
              if (!gradient.batch.visible(q, key, place.length)) scores[i][e] = dp[i][e] = 0;
            }
          }
        }
        LLMTRAIN_UNROLL
        for (int k = 0; k < count / 16; ++k) {
          Pair a[4];
          if constexpr (of_values) {
            as_operand<H>(a, scores, k);
            multiply_row<H>(dv, a, [&](Pair(&m)[4], int column) { outputs.b(m, 16 * k, column); });
          }
          if constexpr (of_keys) {
            as_operand<H>(a, dp, k);
            multiply_row<H>(dk, a, [&](Pair(&m)[4], int column) { queries.b(m, 16 * k, column); });
          }
        }
      }
    }
    const auto row = [&](int r) { return gradient.dqkv + (place.begin + r) * rows.width() + (rows.heads + kv) * n; };
    const auto one = [](int) { return 1.0f; };
    if constexpr (of_keys) store_rows(dk, place.first + warp_row, place.length, n, row, one);
    if constexpr (of_values) {
      store_rows(
          dv, place.first + warp_row, place.length, n, [&](int r) { return row(r) + rows.kv_heads * n; }, one);
    }
  }
};

/// dq of a tile of queries.
template <int D, class H>
struct TiledBackwardQuery {
  static constexpr int threads = tile_threads;
  static constexpr int shared = tiled_query_shared_bytes(D), count = other_rows(D);
  static constexpr bool held = !is_wide(D);  ///< queries and gradients, in registers
  TiledGradient<H> gradient;

  __device__ void operator()() const {
    const Rows<H>& rows = gradient.batch.rows;
    TilePosition place{};
    if (!place.find(rows.segments, gradient.batch.tiles, rows.segment_count, true)) return;
    const int head = static_cast<int>(blockIdx.y), kv = head / (rows.heads / rows.kv_heads), n = rows.head_dim;
    const int warp_row = static_cast<int>(threadIdx.x) / warp_lanes * 16, g = lane() / 4, t = lane() % 4;
    const Tile<D, H> upper{dynamic_shared<H>()}, lower{upper.row(tile_rows)};
    const Tile<D, H> others{held ? upper.data : lower.row(tile_rows)};
    const auto keys_of = [&](int stage) { return Tile<D, H>{others.row(2 * stage * count)}; };
    const auto values_of = [&](int stage) { return Tile<D, H>{others.row((2 * stage + 1) * count)}; };
    const TileRows<H> all_keys = gradient.batch.keys(place, kv), all_values = gradient.batch.values(place, kv);
    const auto fetch = [&](int stage, int first) {
      fill_tile<count>(keys_of(stage), all_keys, first);
      fill_tile<count>(values_of(stage), all_values, first);
    };

    fill_tile<tile_rows>(upper, gradient.batch.queries(place, head), place.first);
    fill_tile<tile_rows>(lower, gradient.outputs(place, head), place.first);
    wait_for_copies();
    __syncthreads();
    Pair query[held ? D / 16 : 1][4], output[held ? D / 16 : 1][4];
    LLMTRAIN_UNROLL
    for (int k = 0; held && k < D / 16; ++k) {
      upper.a(query[k], warp_row, 16 * k);
      lower.a(output[k], warp_row, 16 * k);
    }
    typename TiledGradient<H>::RowSums sums[2] = {};
    LLMTRAIN_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int r = place.first + warp_row + g + 8 * half;
      if (r >= place.length) continue;
      const int64_t at = head * rows.count + place.begin + r;
      sums[half] = gradient.sums(gradient.lse[at], gradient.delta[at]);
    }
    float dq[D / 8][4] = {};
    const int end = place.first + tile_rows < place.length ? place.first + tile_rows : place.length;
    const int first_tile = gradient.batch.first_key(place.first) / count * count;
    int stage = 0;
    __syncthreads();  // queries and gradients have been read
    fetch(stage, first_tile);
    for (int first = first_tile; first < end; first += count, stage ^= 1) {
      wait_for_copies();
      __syncthreads();  // this stage has arrived, and no thread reads the other one
      if (first + count < end) fetch(stage ^ 1, first + count);
      const Tile<D, H> keys = keys_of(stage), values = values_of(stage);
      float scores[count / 8][4] = {}, dp[count / 8][4] = {};
      LLMTRAIN_UNROLL
      for (int k = 0; k < D / 16; ++k) {
        Pair(&q)[4] = query[held ? k : 0], (&o)[4] = output[held ? k : 0];
        if constexpr (!held) {
          upper.a(q, warp_row, 16 * k);
          lower.a(o, warp_row, 16 * k);
        }
        multiply_row<H>(scores, q, [&](Pair(&m)[4], int column) { keys.b_transposed(m, column, 16 * k); });
        multiply_row<H>(dp, o, [&](Pair(&m)[4], int column) { values.b_transposed(m, column, 16 * k); });
      }
      gradient.differentiate(
          scores, dp, place, head, [&](int, int e) { return sums[e / 2]; },
          [&](const SegmentDropout& dropout) { return dropout.kept_keys<count / 8>(place.first + warp_row, first); });
      if (!gradient.batch.all_visible(place.first, tile_rows, first, count, place.length)) {
        LLMTRAIN_UNROLL
        for (int i = 0; i < count / 8; ++i) {
          LLMTRAIN_UNROLL
          for (int e = 0; e < 4; ++e) {
            const int q = place.first + warp_row + g + 8 * (e / 2), key = first + 8 * i + 2 * t + e % 2;
            if (!gradient.batch.visible(q, key, place.length)) scores[i][e] = dp[i][e] = 0;
          }
        }
      }
      LLMTRAIN_UNROLL
      for (int k = 0; k < count / 16; ++k) {
        Pair a[4];
        as_operand<H>(a, dp, k);
        multiply_row<H>(dq, a, [&](Pair(&m)[4], int column) { keys.b(m, 16 * k, column); });
      }
    }
    store_rows(
        dq, place.first + warp_row, place.length, n,
        [&](int r) { return gradient.dqkv + (place.begin + r) * rows.width() + head * n; }, [](int) { return 1.0f; });
  }
};

}  // namespace llmtrain::cuda
