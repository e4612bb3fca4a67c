#pragma once
// Storing of a finished tile of a product: bias, conversion, destination in C. tile_store_avx512.cpp compiles this for
// wider vectors, with instructions that the rest of the program must not contain: it calls only templates over V.

#include "core/dtype.hpp"
#include "kernels/host/fast_math.hpp"

namespace llmtrain::host {

struct FinishedTile {
  const float* sums;
  int64_t stride;  ///< elements between rows of sums
  int64_t rows;
  int64_t columns;
  void* out;  ///< in the output's dtype
  int64_t out_stride;
  DType out_type;
  const void* bias;  ///< [columns], or null
  DType bias_type;
};

template <class V>
class TileStore {
 public:
  static void run(const FinishedTile& t) {
    if (t.out_type == DType::f32) return to<float>(t);
    t.out_type == DType::bf16 ? to<bf16>(t) : to<f16>(t);
  }

 private:
  template <class Out>
  static void to(const FinishedTile& t) {
    if (t.bias_type == DType::f32 || t.bias == nullptr)
      return rows(static_cast<Out*>(t.out), static_cast<const float*>(t.bias), t);
    t.bias_type == DType::bf16 ? rows(static_cast<Out*>(t.out), static_cast<const bf16*>(t.bias), t)
                               : rows(static_cast<Out*>(t.out), static_cast<const f16*>(t.bias), t);
  }

  template <class Out, class Bias>
  static void rows(Out* out, const Bias* bias, const FinishedTile& t) {
    for (int64_t r = 0; r < t.rows; ++r) {
      for (int64_t c = 0; c < t.columns; c += lanes_of<V>) {
        V v = load_up_to<V>(t.sums + r * t.stride + c, t.columns - c);
        if (bias != nullptr) v += load_up_to<V>(bias + c, t.columns - c);
        store_up_to(out + r * t.out_stride + c, v, t.columns - c);
      }
    }
  }
};

/// TileStore<Float16>::run, for processors with AVX-512.
void store_tile_avx512(const FinishedTile& tile);

}  // namespace llmtrain::host
