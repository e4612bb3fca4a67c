#pragma once
#include <cstdint>
#include <vector>

#include "core/arena.hpp"
#include "core/tensor.hpp"
#include "device/device.hpp"

namespace llmtrain {

struct KvSelection;

/// Keys and values of the previous tokens, by layer, for generation. A forward pass with a cache stores those of its
/// rows at (sequence_ids, positions). While `decoding`, rows attend to the cache (one or more new tokens of cached
/// sequences); otherwise the batch holds whole prompts as segments and attends to itself.
struct KvCache {
  std::vector<Tensor> layers;  ///< compute dtype [S, P, 2 G D]; of a split layer one for each block of this rank
  /// fp32 [M] of each linear layer with magnitudes (DoRA): norms of its rows, computed in the layer's first pass and
  /// kept, since while decoding they would take longer than all else.
  std::vector<Tensor> norms;
  mutable std::vector<uint8_t> norms_known;  ///< by layer, 1 once they are computed; forget_norms() clears them
  int64_t blocks = 1;                        ///< of a split model, whose layers and key heads a cache has by block
  bool decoding = false;
  KvSelection* selection = nullptr;  ///< set if only some of the keys of a text are kept

  void plan(Arena& arena, int64_t layer_count, DType compute, int64_t sequences, int64_t positions, int64_t width) {
    layers.resize(static_cast<size_t>(layer_count));
    for (Tensor& layer : layers) {
      arena.add(layer, MemoryCategory::kv_cache, "kv cache", compute, {sequences, positions, width});
    }
  }
  /// Called before weights are used that may have changed.
  void forget_norms() const { norms_known.assign(norms.size(), 0); }
  /// Copies the first `tokens` of a sequence over those of another.
  void copy(int64_t to, int64_t from, int64_t tokens, Stream& stream) const {
    for (const Tensor& layer : layers) {
      const int64_t row = layer.dim(2) * static_cast<int64_t>(size_of(layer.dtype));
      copy_on_device(layer.rows(to, 1).data, layer.rows(from, 1).data, tokens * row, stream);
    }
  }
};

}  // namespace llmtrain
