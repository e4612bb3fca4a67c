#include <cmath>

#include "kernels/attention_checks.hpp"
#include "kernels/cuda/attention_cached_tiles.cuh"

namespace llmtrain {

namespace {

using namespace cuda;

/// Keys per warp. The number is fixed, so that the order of summation depends only on the positions, and so that a few
/// long sequences fill a GPU as well as many short ones.
constexpr int64_t keys_per_split = 256;

/// The softmax of queries over the keys of each split.
struct Partial {
  float* values;   ///< [N, H, splits, D], sum of exp(score - highest) value
  float* highest;  ///< [N, H, splits], score
  float* totals;   ///< [N, H, splits], sum of exp(score - highest)
  int64_t splits;
};

template <class T>
struct StoreKeysValues {
  T* cache;
  const T* qkv;
  Places places;
  int64_t queries, width;  ///< elements of a row's queries, and of its keys and values
  __device__ void operator()(int64_t row) const {
    if (!places.inside(row)) return;
    const T* from = qkv + row * (queries + width) + queries;
    T* to = cache + places.own(row) * width;
    for_packs(width, [&](int64_t i) { store_pack(to, i, width, load_pack(from, i, width)); });
  }
};

/// One warp per row, key head, split and query head of the group; the query head varies fastest, so that the warps of a
/// block read the same keys.
template <class T, int packs>
struct AttendSplit {
  static constexpr int keys_at_once = packs <= 2 ? 4 : 1;
  const T *qkv, *cache;
  Places places;
  AttentionShape s;
  Partial partial;

  __device__ void operator()(int64_t item) const {
    const int64_t group = s.heads / s.kv_heads, d = s.head_dim;
    const int64_t in_group = item % group, split = item / group % partial.splits;
    const int64_t kv_head = item / group / partial.splits % s.kv_heads;
    const int64_t row = item / group / partial.splits / s.kv_heads, head = kv_head * group + in_group;
    if (!places.inside(row)) return;
    const int64_t first = places.first(row), end_of_row = places.own(row) + 1;
    const int64_t begin = first + split * keys_per_split, end = std::min(end_of_row, begin + keys_per_split);
    if (begin >= end) return;

    const int64_t stride = 2 * s.kv_heads * d;
    const T* keys = cache + kv_head * d;
    const T* values = keys + s.kv_heads * d;
    const auto load_vector = [&](const T* vector, Pack(&to)[packs]) {
      for (int p = 0; p < packs; ++p) to[p] = load_pack(vector, element(p), d);
    };
    Pack query[packs];
    load_vector(qkv + row * (s.heads + 2 * s.kv_heads) * d + head * d, query);
    Pack sum[packs] = {};
    float highest = -INFINITY, total = 0;
    for (int64_t j = begin; j < end; j += keys_at_once) {
      Pack key[keys_at_once][packs], value[keys_at_once][packs];
      for (int u = 0; u < keys_at_once; ++u) {  // past the end, the last key is repeated with weight 0
        const int64_t at = std::min(j + u, end - 1) * stride;
        load_vector(keys + at, key[u]);
        load_vector(values + at, value[u]);
      }
      float weight[keys_at_once];
      float new_highest = highest;
      for (int u = 0; u < keys_at_once; ++u) {
        float product = 0;
        for (int p = 0; p < packs; ++p) {
          for (int k = 0; k < Pack::size; ++k) product = fmaf(query[p].v[k], key[u][p].v[k], product);
        }
        float score = warp_sum(product) * s.scale;
        if (s.softcap > 0) score = s.softcap * tanhf(score / s.softcap);
        weight[u] = j + u < end ? score : -INFINITY;
        new_highest = fmaxf(new_highest, weight[u]);
      }
      const float rescale = expf(highest - new_highest);
      highest = new_highest;
      total *= rescale;
      for (Pack& x : sum) {
        for (float& v : x.v) v *= rescale;
      }
      for (int u = 0; u < keys_at_once; ++u) {
        weight[u] = expf(weight[u] - highest);
        total += weight[u];
        for (int p = 0; p < packs; ++p) {
          for (int k = 0; k < Pack::size; ++k) sum[p].v[k] = fmaf(weight[u], value[u][p].v[k], sum[p].v[k]);
        }
      }
    }
    const int64_t result = (row * s.heads + head) * partial.splits + split;
    for (int p = 0; p < packs; ++p) store_pack(partial.values + result * d, element(p), d, sum[p]);
    if (lane() == 0) {
      partial.highest[result] = highest;
      partial.totals[result] = total;
    }
  }
  __device__ static int64_t element(int pack) { return (pack * warp_lanes + lane()) * Pack::size; }
};

/// One warp per row and head; it adds the splits in order.
template <class T>
struct FoldSplits {
  T* out;
  float* lse;
  int64_t tokens;
  Places places;
  AttentionShape s;
  Partial partial;

  __device__ void operator()(int64_t item) const {
    const int64_t row = item / s.heads, d = s.head_dim;
    const int64_t count = places.inside(row) ? places.own(row) + 1 - places.first(row) : 0;
    const int64_t begin = item * partial.splits, end = begin + (count + keys_per_split - 1) / keys_per_split;
    float highest = -INFINITY, total = 0;
    for (int64_t i = begin; i < end; ++i) highest = fmaxf(highest, partial.highest[i]);
    for (int64_t i = begin; i < end; ++i) total += partial.totals[i] * expf(partial.highest[i] - highest);
    if (lane() == 0) lse[item % s.heads * tokens + row] = highest + logf(total);
    for_packs(d, [&](int64_t at) {
      Pack sum{};
      for (int64_t i = begin; i < end; ++i) {
        const float weight = expf(partial.highest[i] - highest);
        const Pack p = load_pack(partial.values + i * d, at, d);
        for (int k = 0; k < Pack::size; ++k) sum.v[k] = fmaf(weight, p.v[k], sum.v[k]);
      }
      for (float& v : sum.v) v /= total;
      store_pack(out + item * d, at, d, sum);
    });
  }
};

}  // namespace

void cache_keys_values(const Tensor& cache, const Tensor& qkv, const Batch& batch, const AttentionShape& s,
                       Stream& stream) {
  check_cache(cache, qkv, batch, s);
  dispatch(qkv, [&]<class T>(T* rows) {
    for_each_warp(batch.tokens, stream,
                  StoreKeysValues<T>{cache.as<T>(), rows, Places(cache, batch, s), s.heads * s.head_dim, cache.dim(2)});
  });
}

void attention_cached(const Tensor& out, const Tensor& lse, const Tensor& qkv, const Tensor& cache, const Batch& batch,
                      const AttentionShape& s, ProductRole role, Stream& stream) {
  check_cache(cache, qkv, batch, s);
  check_cached_output(out, lse, qkv, s);
  if (role != ProductRole::decoding) return cuda::attention_cached_tiles(out, lse, qkv, cache, batch, s, stream);
  const Places places(cache, batch, s);
  const int64_t visible = s.window > 0 ? std::min(s.window, cache.dim(1)) : cache.dim(1);
  const int64_t splits = (visible + keys_per_split - 1) / keys_per_split, items = batch.tokens * s.heads;
  auto* values = static_cast<float*>(scratch(items * splits * (s.head_dim + 2) * static_cast<int64_t>(sizeof(float))));
  float* highest = values + items * splits * s.head_dim;
  const Partial partial{values, highest, highest + items * splits, splits};
  dispatch(qkv, [&]<class T>(T* rows) {
    const auto attend = [&]<int packs>() {
      for_each_warp(items * splits, stream, AttendSplit<T, packs>{rows, cache.as<T>(), places, s, partial});
    };
    constexpr int64_t of_packs = warp_lanes * Pack::size;  // elements, one pack per lane
    if (s.head_dim <= of_packs) {
      attend.template operator()<1>();
    } else if (s.head_dim <= 2 * of_packs) {
      attend.template operator()<2>();
    } else {
      attend.template operator()<8>();
    }
    for_each_warp(items, stream, FoldSplits<T>{out.as<T>(), lse.as<float>(), batch.tokens, places, s, partial});
  });
}

}  // namespace llmtrain
