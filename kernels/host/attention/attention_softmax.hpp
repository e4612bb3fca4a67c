#pragma once
// Softmax computed online (Milakov & Gimelshein 2018), in powers of two, over tiles of scores [keys, queries].

#include <algorithm>
#include <cfloat>
#include <numbers>

#include "kernels/attention.hpp"
#include "kernels/host/attention/attention_panels.hpp"
#include "kernels/host/fast_math.hpp"
#include "kernels/host/special_functions.hpp"

namespace llmtrain::host {

/// Capped attention scores, c tanh(s / c): both passes keep t = tanh(s / c) in the tile and include c in the following
/// factor.
struct ScoreScale {
  float inside;  ///< factor on the argument of tanh; 0 = no cap
  float powers;  ///< factor from the tile's elements to scores in powers of two

  explicit ScoreScale(const AttentionShape& shape)
      : inside(shape.softcap > 0 ? shape.scale / shape.softcap : 0.0f),
        powers((shape.softcap > 0 ? shape.softcap : shape.scale) * std::numbers::log2e_v<float>) {}
  bool capped() const { return inside > 0; }

  /// products -> t; `count` is a multiple of 8.
  void cap(float* tile, int count) const {
    for (int e = 0; e < count; e += 8) store8(tile + e, fast_tanh(load8(tile + e) * inside));
  }
};

/// Running statistics of `columns` queries, a multiple of 16. What a query gets does not depend on the other columns.
/// A mask says that key row r is visible to the columns [low(r), high(r)); it is full() if all are to all.
template <int columns>
struct alignas(64) OnlineSoftmax {
  float maximum[columns];  ///< maximum of score * log2(e)
  float sum[columns];
  float correction[columns];  ///< factor on the sums before the last tile

  void reset() {
    std::fill(maximum, maximum + columns, -FLT_MAX);
    std::fill(sum, sum + columns, 0.0f);
  }

  /// Turns products [64, columns] into probabilities before normalisation. Returns true if any correction is not 1.
  template <class Mask>
  bool add_tile(float* products, const ScoreScale& scale, const Mask& mask) {
    if (scale.capped()) scale.cap(products, rows * columns);
    if (!mask.full()) hide(products, mask);
    const bool corrected = update_maximum(products, scale.powers);
    exponentiate(products, mask);
    return corrected;
  }

  /// output [channels, columns] times the correction.
  void correct(float* output, int channels) const {
    for (int d = 0; d < channels; ++d) {
      for (int c = 0; c < columns; ++c) output[d * columns + c] *= correction[c];
    }
  }
  /// output / sum
  void normalize(float* output, int channels) {
    for (int c = 0; c < columns; ++c) correction[c] = 1.0f / sum[c];
    correct(output, channels);
  }

 private:
  static constexpr int rows = attention_block;
  static constexpr int vector = 8;  ///< queries per Float8

  template <class Mask>
  static void hide(float* scores, const Mask& mask) {
    for (int r = 0; r < rows; ++r) {
      float* s = scores + r * columns;
      std::fill(s, s + mask.low(r), -FLT_MAX);
      std::fill(s + mask.high(r), s + columns, -FLT_MAX);
    }
  }

  /// Scales the scores; computes new maxima and the correction of older sums.
  bool update_maximum(float* scores, float scale) {
    bool changed = false;
    // two vectors at a time, so that their chains of maxima run in parallel
    for (int c = 0; c < columns; c += 2 * vector) {
      Float8 best[2] = {load8(maximum + c), load8(maximum + c + vector)};
      const Float8 old[2] = {best[0], best[1]};
      for (int r = 0; r < rows; ++r) {
        float* s = scores + r * columns + c;
        for (int v = 0; v < 2; ++v) {
          // The product is rounded before the maximum is subtracted: a fused difference could be far from 0.
          const Float8 x = load8(s + v * vector) * scale;
          store8(s + v * vector, x);
          best[v] = x > best[v] ? x : best[v];
        }
      }
      for (int v = 0; v < 2; ++v) {
        const Float8 factor = fast_exp2_capped(old[v] - best[v]);
        store8(maximum + c + v * vector, best[v]);
        store8(correction + c + v * vector, factor);
        store8(sum + c + v * vector, load8(sum + c + v * vector) * factor);
        for (int l = 0; l < vector; ++l) changed |= best[v][l] != old[v][l];
      }
    }
    return changed;
  }

  /// scores -> exp2(score - maximum), 0 where hidden; added to the sums.
  template <class Mask>
  void exponentiate(float* scores, const Mask& mask) {
    const bool full = mask.full();
    for (int r = 0; r < rows; ++r) {
      float* s = scores + r * columns;
      const int low = full ? 0 : mask.low(r);
      const int high = full ? columns : mask.high(r);
      for (int c = low / vector * vector; c < high; c += vector) {
        store8(s + c, fast_exp2_capped(load8(s + c) - load8(maximum + c)));
      }
      std::fill(s, s + low, 0.0f);
      std::fill(s + high, s + columns, 0.0f);
      for (int c = 0; c < columns; c += vector) store8(sum + c, load8(sum + c) + load8(s + c));
    }
  }
};

}  // namespace llmtrain::host
