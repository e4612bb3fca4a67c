#pragma once
// Capped attention scores, c tanh(s / c): both passes keep t = tanh(s / c) in the tile and include c in the following
// factor.

#include <numbers>

#include "kernels/attention.hpp"
#include "kernels/host/attention/attention_panels.hpp"
#include "kernels/host/special_functions.hpp"

namespace llmtrain::host {

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

}  // namespace llmtrain::host
