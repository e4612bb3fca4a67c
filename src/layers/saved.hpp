#pragma once
// Tensors that a layer keeps from the forward to the backward pass. A layer lists them once, in
//   template <class F> void visit_saved(Saved&, DType compute, int64_t rows, const F& f, const char* part = "") const
// which calls f(tensor, SavedSpec) for each. Those that a level of recomputation drops lie in the arena's scratch while
// the layer runs forward, and again while it runs backward.

#include <optional>
#include <string>

#include "core/arena.hpp"
#include "layers/memory_config.hpp"

namespace llmtrain {

struct SavedSpec {
  const char* part;  ///< name of the inner layer, such as ".norm1", or ""
  const char* name;
  DType dtype;
  int64_t rows;
  int64_t columns;                           ///< 0: a vector
  std::optional<Recompute> dropped_by = {};  ///< lowest level that drops it; higher levels drop it too

  bool kept(Recompute level) const { return !dropped_by || level < *dropped_by; }
  int64_t bytes() const {
    return Arena::aligned(rows * (columns == 0 ? 1 : columns) * static_cast<int64_t>(size_of(dtype)));
  }
};

/// Registers the tensors that `level` keeps; the others stay empty.
template <class Layer, class Saved>
void plan_kept(Arena& arena, const Layer& layer, Saved& saved, DType compute, int64_t rows, Recompute level,
               const std::string& name) {
  layer.visit_saved(saved, compute, rows, [&](Tensor& t, const SavedSpec& s) {
    if (!s.kept(level)) return;
    const std::string whole = name + s.part + s.name;
    if (s.columns == 0) {
      arena.add(t, MemoryCategory::activations, whole, s.dtype, {s.rows});
    } else {
      arena.add(t, MemoryCategory::activations, whole, s.dtype, {s.rows, s.columns});
    }
  });
}

/// Scratch bytes of allocate_dropped().
template <class Saved, class Layer>
int64_t dropped_bytes(const Layer& layer, DType compute, int64_t rows, Recompute level) {
  int64_t bytes = 0;
  Saved all;
  layer.visit_saved(all, compute, rows, [&](Tensor&, const SavedSpec& s) { bytes += s.kept(level) ? 0 : s.bytes(); });
  return bytes;
}

/// Sets `all` to the kept tensors, and scratch for the dropped ones.
template <class Layer, class Saved>
void allocate_dropped(Saved& all, Arena::Frame& frame, const Layer& layer, const Saved& kept, DType compute,
                      int64_t rows) {
  all = kept;
  layer.visit_saved(all, compute, rows, [&](Tensor& t, const SavedSpec& s) {
    if (!t.empty()) return;
    t = s.columns == 0 ? frame.take(s.dtype, {s.rows}) : frame.take(s.dtype, {s.rows, s.columns});
  });
}

}  // namespace llmtrain
