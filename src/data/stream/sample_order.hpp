#pragma once
// Random order of n samples without a table: the permutation is computed for each index alone.

#include <cmath>
#include <cstdint>

#include "core/error.hpp"
#include "core/philox.hpp"

namespace llmtrain {

/// A bijection of 0 .. n - 1, a pure function of the key. It is a Feistel network on pairs (left, right), left in [0,
/// a), right in [0, b), with the smallest a b >= n; each round shifts one half by a random function of the other (Black
/// and Rogaway, "Ciphers with arbitrary finite domains", 2002). A result of n or more is mapped again until it is below
/// n (cycle walking), which preserves the bijection.
class SampleOrder {
 public:
  SampleOrder(int64_t samples, uint64_t key) : samples_(static_cast<uint64_t>(samples)), key_(key) {
    LLMTRAIN_CHECK(samples >= 1 && samples < int64_t{1} << 62, "number of samples out of range");
    left_ = static_cast<uint64_t>(std::sqrt(static_cast<double>(samples)));
    while (left_ * left_ < samples_) ++left_;
    right_ = (samples_ + left_ - 1) / left_;
  }

  int64_t operator()(int64_t span) const {
    uint64_t x = static_cast<uint64_t>(span);
    do {
      x = shuffle(x);
    } while (x >= samples_);
    return static_cast<int64_t>(x);
  }

 private:
  static constexpr int rounds = 8;

  uint64_t random(int round, uint64_t half) const {
    const Philox4 r = philox4x32(key_, static_cast<uint64_t>(round), half);
    return uint64_t{r.v[1]} << 32 | r.v[0];
  }

  uint64_t shuffle(uint64_t x) const {
    uint64_t left = x / right_, right = x % right_;
    for (int round = 0; round < rounds; round += 2) {
      left = (left + random(round, right) % left_) % left_;
      right = (right + random(round + 1, left) % right_) % right_;
    }
    return left * right_ + right;
  }

  uint64_t samples_, key_, left_, right_;
};

}  // namespace llmtrain
