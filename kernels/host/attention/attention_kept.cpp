#include "kernels/attention_kept.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/host/element.hpp"
#include "kernels/host/lanes.hpp"
#include "kernels/host/parallel.hpp"
#include "kernels/kept_key_order.hpp"

namespace llmtrain {

namespace {

using namespace host;

/// The state of one head of keys of one text.
struct Head {
  char* keys;  ///< of place 0; values are `values` bytes after it
  int64_t stride, bytes, values;
  float* sums;
  int32_t* positions;
  int32_t* hole;
  int64_t budget, last;

  Head(const KeptKeys& kept, const AttentionShape& s, int64_t text, int64_t g) {
    const auto element = static_cast<int64_t>(size_of(kept.cache.dtype));
    const int64_t places = kept.cache.dim(1), index = text * s.kv_heads + g;
    stride = kept.cache.dim(2) * element;
    bytes = s.head_dim * element;
    values = s.kv_heads * bytes;
    keys = static_cast<char*>(kept.cache.data) + text * places * stride + g * bytes;
    sums = kept.sums.as<float>() + index * places;
    positions = kept.positions.as<int32_t>() + index * places;
    hole = kept.holes.as<int32_t>() + index;
    budget = kept.budgets.as<int32_t>()[2 * text];
    last = kept.budgets.as<int32_t>()[2 * text + 1];
  }

  /// `key`: of a row of qkv, whose value is `values` bytes after it.
  void store(int64_t place, const char* key, int64_t position, float sum) {
    std::memcpy(keys + place * stride, key, static_cast<size_t>(bytes));
    std::memcpy(keys + place * stride + values, key + values, static_cast<size_t>(bytes));
    positions[place] = static_cast<int32_t>(position);
    sums[place] = sum;
  }
};

template <class T>
float score_of(const T* query, const T* key, const AttentionShape& s) {
  auto score = static_cast<float>(
      lane_sum(s.head_dim, [&](int64_t i, int64_t n) { return load_up_to(query + i, n) * load_up_to(key + i, n); }));
  score *= s.scale;
  return s.softcap > 0 ? s.softcap * std::tanh(score / s.softcap) : score;
}

/// sums [count] of the probabilities of all queries of a prompt, of the query heads of key head g.
template <class T>
void sum_probabilities(std::vector<float>& sums, const T* qkv, const float* lse, int64_t rows, int64_t begin, int64_t g,
                       const AttentionShape& s) {
  const int64_t width = (s.heads + 2 * s.kv_heads) * s.head_dim, group = s.heads / s.kv_heads;
  const auto count = static_cast<int64_t>(sums.size());
  for (int64_t h = g * group; h < (g + 1) * group; ++h) {
    for (int64_t i = 0; i < count; ++i) {
      const T* query = qkv + (begin + i) * width + h * s.head_dim;
      for (int64_t j = 0; j <= i; ++j) {
        const T* key = qkv + (begin + j) * width + (s.heads + g) * s.head_dim;
        sums[static_cast<size_t>(j)] += std::exp(score_of(query, key, s) - lse[h * rows + begin + i]);
      }
    }
  }
}

}  // namespace

void keep_prompt_keys(const KeptKeys& kept, const Tensor& qkv, const Tensor& lse, const Batch& batch,
                      const AttentionShape& s, Stream&) {
  const auto* segments = batch.segments.as<int32_t>();
  dispatch(qkv.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T* rows = qkv.as<T>();
    parallel_for(batch.segment_count * s.kv_heads, [&](int64_t item) {
      const int64_t segment = item / s.kv_heads, g = item % s.kv_heads;
      const int64_t begin = segments[segment], count = segments[segment + 1] - begin;
      Head head(kept, s, batch.sequence_ids.as<int64_t>()[begin], g);
      std::vector<float> sums(static_cast<size_t>(count), 0.0F);
      if (kept.sinks < 0) sum_probabilities(sums, rows, lse.as<float>(), batch.tokens, begin, g, s);
      std::vector<int64_t> order(static_cast<size_t>(count));
      std::iota(order.begin(), order.end(), int64_t{0});
      const int64_t surplus = count - head.budget;
      if (surplus > 0) {  // those that stay, in the order of their positions
        std::sort(order.begin(), order.end() - head.last, [&](int64_t a, int64_t b) {
          return leaves_before(kept.sinks, {a, sums[static_cast<size_t>(a)]}, {b, sums[static_cast<size_t>(b)]});
        });
        order.erase(order.begin(), order.begin() + surplus);
        std::ranges::sort(order);
      }
      int64_t place = 0;
      for (const int64_t position : order) {
        const T* key = rows + (begin + position) * qkv.dim(1) + (s.heads + g) * s.head_dim;
        head.store(place++, reinterpret_cast<const char*>(key), position, sums[static_cast<size_t>(position)]);
      }
      *head.hole = static_cast<int32_t>(head.budget);
    });
  });
}

void store_kept_keys(const KeptKeys& kept, const Tensor& counts, const Tensor& qkv, const Batch& batch,
                     const AttentionShape& s, Stream&) {
  const auto element = static_cast<int64_t>(size_of(qkv.dtype));
  for (int64_t row = 0; row < batch.tokens; ++row) {
    const int64_t position = batch.positions.as<int32_t>()[row], text = batch.sequence_ids.as<int64_t>()[row];
    const char* keys = static_cast<const char*>(qkv.data) + (row * qkv.dim(1) + s.heads * s.head_dim) * element;
    for (int64_t g = 0; g < s.kv_heads; ++g) {
      Head head(kept, s, text, g);
      const int64_t place = position <= head.budget ? position : int64_t{*head.hole};
      LLMTRAIN_CHECK(place < kept.cache.dim(1), "a token is outside the cache");
      head.store(place, keys + g * head.bytes, position, 0);
      counts.as<int32_t>()[row] = static_cast<int32_t>(std::min(position, head.budget));
    }
  }
}

void weigh_kept_keys(const KeptKeys& kept, const Tensor& counts, const Tensor& qkv, const Batch& batch,
                     const AttentionShape& s, Stream&) {
  const int64_t group = s.heads / s.kv_heads;
  dispatch(qkv.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    parallel_for(batch.tokens * s.kv_heads, [&](int64_t item) {
      const int64_t row = item / s.kv_heads, g = item % s.kv_heads;
      const int64_t count = counts.as<int32_t>()[row] + int64_t{1}, position = batch.positions.as<int32_t>()[row];
      const Head head(kept, s, batch.sequence_ids.as<int64_t>()[row], g);
      std::vector<float> scores(static_cast<size_t>(count));
      for (int64_t h = g * group; kept.sinks < 0 && h < (g + 1) * group; ++h) {
        const T* query = qkv.as<T>() + row * qkv.dim(1) + h * s.head_dim;
        float highest = -std::numeric_limits<float>::infinity(), total = 0;
        for (int64_t j = 0; j < count; ++j) {
          const T* key = reinterpret_cast<const T*>(head.keys + j * head.stride);
          scores[static_cast<size_t>(j)] = score_of(query, key, s);
          highest = std::max(highest, scores[static_cast<size_t>(j)]);
        }
        for (float& score : scores) {
          score = std::exp(score - highest);
          total += score;
        }
        for (int64_t j = 0; j < count; ++j) head.sums[j] += scores[static_cast<size_t>(j)] / total;
      }
      if (count <= head.budget) return;
      const auto key = [&](int64_t j) { return KeptKey{head.positions[j], head.sums[j]}; };
      int64_t hole = -1;
      for (int64_t j = 0; j < count; ++j) {
        if (head.positions[j] > position - head.last) continue;
        if (hole < 0 || leaves_before(kept.sinks, key(j), key(hole))) {
          hole = j;
        }
      }
      *head.hole = static_cast<int32_t>(hole);
    });
  });
}

}  // namespace llmtrain
