#pragma once
#include <vector>

#include "core/arena.hpp"
#include "kernels/attention_kept.hpp"
#include "layers/kv_cache.hpp"

namespace llmtrain {

/// The state of a KvCache that keeps some of the keys of each text.
struct KvSelection {
  std::vector<KeptKeys> layers;  ///< their `cache` is set by of_layer()
  Tensor budgets;                ///< of all layers, see KeptKeys
  Tensor counts;                 ///< int32 [S], a row for each text of a decoding pass

  /// The cache is planned for `places` places.
  void plan(Arena& arena, int64_t layer_count, int64_t sequences, int64_t kv_heads, int64_t places, int64_t sinks) {
    layers.resize(static_cast<size_t>(layer_count));
    constexpr auto category = MemoryCategory::kv_cache;
    arena.add(budgets, category, "kept keys", DType::i32, {sequences, 2});
    arena.add(counts, category, "kept keys", DType::i32, {sequences});
    for (KeptKeys& layer : layers) {
      layer.sinks = sinks;
      arena.add(layer.sums, category, "kept keys", DType::f32, {sequences, kv_heads, places});
      arena.add(layer.positions, category, "kept keys", DType::i32, {sequences, kv_heads, places});
      arena.add(layer.holes, category, "kept keys", DType::i32, {sequences, kv_heads});
    }
  }
  KeptKeys of_layer(const KvCache& cache, size_t layer) const {
    KeptKeys kept = layers[layer];
    kept.cache = cache.layers[layer];
    kept.budgets = budgets;
    return kept;
  }
  /// Copies the state of a sequence over that of another.
  void copy(int64_t to, int64_t from, Stream& stream) const {
    const auto copy_row = [&](const Tensor& t) {
      copy_on_device(t.rows(to, 1).data, t.rows(from, 1).data, t.rows(from, 1).bytes(), stream);
    };
    copy_row(budgets);
    for (const KeptKeys& layer : layers) {
      copy_row(layer.sums);
      copy_row(layer.positions);
      copy_row(layer.holes);
    }
  }
};

}  // namespace llmtrain
