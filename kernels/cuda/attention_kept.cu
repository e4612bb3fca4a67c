#include "kernels/attention_kept.hpp"
#include "kernels/cuda/attention_rows.cuh"
#include "kernels/kept_key_order.hpp"

namespace llmtrain {

namespace {

using namespace cuda;

/// The cache of a layer, as kernels see it.
template <class T>
struct KeptView {
  T* cache;
  float* sums;
  int32_t *positions, *holes;
  const int32_t* budgets;
  int64_t texts, places, sinks;

  explicit KeptView(const KeptKeys& k)
      : cache(k.cache.as<T>()),
        sums(k.sums.as<float>()),
        positions(k.positions.as<int32_t>()),
        holes(k.holes.as<int32_t>()),
        budgets(k.budgets.as<int32_t>()),
        texts(k.cache.dim(0)),
        places(k.cache.dim(1)),
        sinks(k.sinks) {}
};

/// The state of a head of keys of a text.
template <class T>
struct Head {
  T* keys;                ///< of place 0; values are `values` elements after it
  int64_t width, values;  ///< elements of a place, and of its keys
  float* sums;
  int32_t *positions, *hole;
  int64_t budget, last;

  __device__ Head(const KeptView<T>& kept, const Rows<T>& rows, int64_t text, int64_t g)
      : values(int64_t{rows.kv_heads} * rows.head_dim) {
    const int64_t head = text * rows.kv_heads + g;
    width = 2 * values;
    keys = kept.cache + text * kept.places * width + g * rows.head_dim;
    sums = kept.sums + head * kept.places;
    positions = kept.positions + head * kept.places;
    hole = kept.holes + head;
    budget = kept.budgets[2 * text];
    last = kept.budgets[2 * text + 1];
  }

  /// A warp's: stores the key of a row and its value.
  __device__ void store(int64_t place, const Rows<T>& rows, int64_t row, int64_t g, int64_t position, float sum) const {
    const T *key = rows.key(row, static_cast<int>(g)), *value = rows.value(row, static_cast<int>(g));
    T* to = keys + place * width;
    for (int64_t i = lane(); i < rows.head_dim; i += warp_lanes) {
      to[i] = key[i];
      to[values + i] = value[i];
    }
    if (lane() != 0) return;
    positions[place] = static_cast<int32_t>(position);
    sums[place] = sum;
  }
};

/// A warp's.
template <class T>
__device__ float score_of(const T* query, const T* key, const Rows<T>& rows) {
  float product = 0;
  for (int64_t i = lane(); i < rows.head_dim; i += warp_lanes) product = fmaf(load(query + i), load(key + i), product);
  const float score = warp_sum(product) * rows.scale;
  return rows.softcap > 0 ? rows.softcap * tanhf(score / rows.softcap) : score;
}

/// One warp per row of a prompt and key head: sums [N, G] of the probabilities of its key, query after query.
template <class T>
struct SumProbabilities {
  Rows<T> rows;
  const float* lse;
  float* sums;

  __device__ void operator()(int64_t item) const {
    const int64_t row = item / rows.kv_heads, g = item % rows.kv_heads;
    const int group = rows.heads / rows.kv_heads;
    int64_t begin = 0, end = 0;
    rows.segment_of(row, begin, end);
    const T* key = rows.key(row, static_cast<int>(g));
    float sum = 0;
    for (int h = static_cast<int>(g) * group; h < (static_cast<int>(g) + 1) * group; ++h) {
      for (int64_t i = row; i < end; ++i) {
        sum += expf(score_of(rows.query(i, h), key, rows) - lse[h * rows.count + i]);
      }
    }
    if (lane() == 0) sums[item] = sum;
  }
};

/// One warp per row of a prompt and key head: stays [N, G] is 1 where the key stays.
template <class T>
struct ChooseKeys {
  Rows<T> rows;
  KeptView<T> kept;
  const int64_t* sequences;
  const float* sums;  ///< nullptr: unused
  int32_t* stays;

  __device__ void operator()(int64_t item) const {
    const int64_t row = item / rows.kv_heads, g = item % rows.kv_heads;
    int64_t begin = 0, end = 0;
    rows.segment_of(row, begin, end);
    const Head<T> head(kept, rows, sequences[begin], g);
    const int64_t surplus = end - begin - head.budget, may_leave = end - head.last;
    const auto key = [&](int64_t at) {
      return KeptKey{at - begin, sums == nullptr ? 0.0f : sums[at * rows.kv_heads + g]};
    };
    int before = 0;  // keys that leave before this one
    if (surplus > 0 && row < may_leave) {
      for (int64_t other = begin + lane(); other < may_leave; other += warp_lanes) {
        before += other != row && leaves_before(kept.sinks, key(other), key(row)) ? 1 : 0;
      }
    }
    before = warp_sum(before);
    if (lane() == 0) stays[item] = surplus <= 0 || row >= may_leave || before >= surplus ? 1 : 0;
  }
};

/// One warp per row of a prompt and key head. Keys that stay have places in the order of their positions.
template <class T>
struct StorePrompt {
  Rows<T> rows;
  KeptView<T> kept;
  const int64_t* sequences;
  const float* sums;
  const int32_t* stays;

  __device__ void operator()(int64_t item) const {
    const int64_t row = item / rows.kv_heads, g = item % rows.kv_heads;
    int64_t begin = 0, end = 0;
    rows.segment_of(row, begin, end);
    const Head<T> head(kept, rows, sequences[begin], g);
    if (row == begin && lane() == 0) *head.hole = static_cast<int32_t>(head.budget);
    if (stays[item] == 0) return;
    int place = 0;
    for (int64_t other = begin + lane(); other < row; other += warp_lanes) place += stays[other * rows.kv_heads + g];
    head.store(warp_sum(place), rows, row, g, row - begin, sums == nullptr ? 0.0f : sums[item]);
  }
};

/// One warp per new token and key head.
template <class T>
struct StoreToken {
  Rows<T> rows;
  KeptView<T> kept;
  const int64_t* sequences;
  const int32_t* positions;
  int32_t* counts;

  __device__ void operator()(int64_t item) const {
    const int64_t row = item / rows.kv_heads, g = item % rows.kv_heads, position = positions[row];
    const Head<T> head(kept, rows, sequences[row], g);
    const int64_t place = position <= head.budget ? position : int64_t{*head.hole};
    if (place < kept.places) head.store(place, rows, row, g, position, 0);
    if (g == 0 && lane() == 0) counts[row] = static_cast<int32_t>(std::min(position, head.budget));
  }
};

/// One warp per new token and key head.
template <class T>
struct WeighKeys {
  Rows<T> rows;
  KeptView<T> kept;
  const int64_t* sequences;
  const int32_t *positions, *counts;
  float* scores;  ///< [N, G, P]

  __device__ void operator()(int64_t item) const {
    const int64_t row = item / rows.kv_heads, g = item % rows.kv_heads;
    const int64_t count = std::min(counts[row] + int64_t{1}, kept.places);
    const Head<T> head(kept, rows, sequences[row], g);
    const int group = rows.heads / rows.kv_heads;
    for (int h = static_cast<int>(g) * group; kept.sinks < 0 && h < (static_cast<int>(g) + 1) * group; ++h) {
      add_probabilities(head, rows.query(row, h), count, scores + item * kept.places);
    }
    if (count > head.budget) make_hole(head, count, positions[row] - head.last);
  }

  __device__ void add_probabilities(const Head<T>& head, const T* query, int64_t count, float* own) const {
    float highest = -INFINITY, total = 0;
    for (int64_t j = 0; j < count; ++j) {
      const float score = score_of(query, head.keys + j * head.width, rows);
      highest = fmaxf(highest, score);
      if (lane() == j % warp_lanes) own[j] = score;  // read by the same lane below
    }
    for (int64_t j = lane(); j < count; j += warp_lanes) {
      own[j] = expf(own[j] - highest);
      total += own[j];
    }
    total = warp_sum(total);
    for (int64_t j = lane(); j < count; j += warp_lanes) head.sums[j] += own[j] / total;
  }

  /// A key that may leave; place -1: none.
  struct Candidate {
    int place;
    int position;
    float sum;
  };
  __device__ Candidate first_of(Candidate a, Candidate b) const {
    if (b.place < 0 || a.place == b.place) return a;
    return a.place < 0 || leaves_before(kept.sinks, {b.position, b.sum}, {a.position, a.sum}) ? b : a;
  }

  /// Makes a hole of the key, among those up to `may_leave`, that leaves first.
  __device__ void make_hole(const Head<T>& head, int64_t count, int64_t may_leave) const {
    Candidate first{-1, 0, 0};
    for (int64_t j = lane(); j < count; j += warp_lanes) {
      if (head.positions[j] > may_leave) continue;
      first = first_of(first, {static_cast<int>(j), head.positions[j], head.sums[j]});
    }
    for (int distance = warp_lanes / 2; distance > 0; distance /= 2) {
      const int place = __shfl_xor_sync(0xFFFFFFFFu, first.place, distance);
      const int position = __shfl_xor_sync(0xFFFFFFFFu, first.position, distance);
      const float sum = __shfl_xor_sync(0xFFFFFFFFu, first.sum, distance);
      first = first_of(first, {place, position, sum});
    }
    if (lane() == 0) *head.hole = first.place;
  }
};

}  // namespace

void keep_prompt_keys(const KeptKeys& keys, const Tensor& qkv, const Tensor& lse, const Batch& batch,
                      const AttentionShape& s, Stream& stream) {
  const int64_t items = batch.tokens * s.kv_heads;
  const bool weighs = keys.sinks < 0;
  auto* stays = static_cast<int32_t*>(scratch(items * static_cast<int64_t>(sizeof(int32_t) + sizeof(float))));
  auto* sums = weighs ? reinterpret_cast<float*>(stays + items) : nullptr;
  const auto* sequences = batch.sequence_ids.as<int64_t>();
  dispatch(qkv, [&]<class T>(T*) {
    const Rows<T> rows(qkv, batch, s, {});
    const KeptView<T> kept(keys);
    if (weighs) for_each_warp(items, stream, SumProbabilities<T>{rows, lse.as<float>(), sums});
    for_each_warp(items, stream, ChooseKeys<T>{rows, kept, sequences, sums, stays});
    for_each_warp(items, stream, StorePrompt<T>{rows, kept, sequences, sums, stays});
  });
}

void store_kept_keys(const KeptKeys& keys, const Tensor& counts, const Tensor& qkv, const Batch& batch,
                     const AttentionShape& s, Stream& stream) {
  dispatch(qkv, [&]<class T>(T*) {
    for_each_warp(batch.tokens * s.kv_heads, stream,
                  StoreToken<T>{Rows<T>(qkv, batch, s, {}), KeptView<T>(keys), batch.sequence_ids.as<int64_t>(),
                                batch.positions.as<int32_t>(), counts.as<int32_t>()});
  });
}

void weigh_kept_keys(const KeptKeys& keys, const Tensor& counts, const Tensor& qkv, const Batch& batch,
                     const AttentionShape& s, Stream& stream) {
  const int64_t items = batch.tokens * s.kv_heads;
  auto* scores = static_cast<float*>(scratch(items * keys.cache.dim(1) * static_cast<int64_t>(sizeof(float))));
  dispatch(qkv, [&]<class T>(T*) {
    for_each_warp(items, stream,
                  WeighKeys<T>{Rows<T>(qkv, batch, s, {}), KeptView<T>(keys), batch.sequence_ids.as<int64_t>(),
                               batch.positions.as<int32_t>(), counts.as<int32_t>(), scores});
  });
}

}  // namespace llmtrain
