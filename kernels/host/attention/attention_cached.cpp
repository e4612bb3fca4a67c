#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/attention_checks.hpp"
#include "kernels/host/attention/attention_cached_tiles.hpp"
#include "kernels/host/parallel.hpp"

namespace llmtrain {

namespace {

using namespace host;

/// One query head of one row. `scores` is scratch, one per visible key.
template <class T>
void attend(T* out, const T* query, const T* keys, const T* values, int64_t stride, int64_t count,
            const AttentionShape& s, float* scores) {
  const int64_t d = s.head_dim;
  float highest = -std::numeric_limits<float>::infinity();
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = score_of(query, keys + j * stride, s);
    highest = std::max(highest, scores[j]);
  }
  float total = 0;
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = std::exp(scores[j] - highest);
    total += scores[j];
  }
  for (int64_t i = 0; i < d; i += 8) {
    const int64_t n = std::min<int64_t>(8, d - i);
    Float8 sum{};
    for (int64_t j = 0; j < count; ++j) sum += scores[j] * load_up_to(values + j * stride + i, n);
    sum /= total;
    for (int64_t k = 0; k < n; ++k) store(out + i + k, sum[k]);
  }
}

}  // namespace

void cache_keys_values(const Tensor& cache, const Tensor& qkv, const Batch& batch, const AttentionShape& s, Stream&) {
  check_cache(cache, qkv, batch, s);
  const auto element = static_cast<int64_t>(size_of(qkv.dtype));
  const int64_t bytes = 2 * s.kv_heads * s.head_dim * element;
  const int64_t row_bytes = qkv.dim(1) * element, queries = s.heads * s.head_dim * element;
  for (int64_t row = 0; row < batch.tokens; ++row) {
    const int64_t sequence = batch.sequence_ids.as<int64_t>()[row], position = batch.positions.as<int32_t>()[row];
    LLMTRAIN_CHECK(sequence >= 0 && sequence < cache.dim(0) && position >= 0 && position < cache.dim(1),
                   "a token is outside the cache");
    std::memcpy(static_cast<char*>(cache.data) + place_of(cache, batch, row) * bytes,
                static_cast<const char*>(qkv.data) + row * row_bytes + queries, static_cast<size_t>(bytes));
  }
}

void attention_cached(const Tensor& out, const Tensor& qkv, const Tensor& cache, const Batch& batch,
                      const AttentionShape& s, ProductRole role, Stream&) {
  check_cache(cache, qkv, batch, s);
  check_cached_output(out, qkv, s);
  if (role != ProductRole::decoding) return host::attention_cached_tiles(out, qkv, cache, batch, s);
  const int64_t stride = cache.dim(2), width = qkv.dim(1), group = s.heads / s.kv_heads;
  dispatch(qkv.dtype, [&](auto* tag) {
    using T = std::remove_pointer_t<decltype(tag)>;
    const T* rows = qkv.as<T>();
    const T* stored = cache.as<T>();
    T* result = out.as<T>();
    parallel_for(batch.tokens * s.heads, [&](int64_t item) {
      const int64_t row = item / s.heads, head = item % s.heads;
      const int64_t position = batch.positions.as<int32_t>()[row];
      const int64_t first = s.window > 0 ? std::max<int64_t>(0, position - s.window + 1) : 0;
      const int64_t count = position - first + 1;
      const T* keys = stored + (place_of(cache, batch, row) - position + first) * stride + head / group * s.head_dim;
      thread_local std::vector<float> scores;
      if (static_cast<int64_t>(scores.size()) < count) scores.resize(static_cast<size_t>(cache.dim(1)));
      attend(result + row * out.dim(1) + head * s.head_dim, rows + row * width + head * s.head_dim, keys,
             keys + s.kv_heads * s.head_dim, stride, count, s, scores.data());
    });
  });
}

}  // namespace llmtrain
