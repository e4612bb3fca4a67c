#pragma once
// A sum of doubles that is independent of order, partition and threads: a fixed-point accumulator that spans the whole
// range of double in 64-bit limbs of 32 payload bits (Kulisch). Limbs of several accumulators may be added as integers
// (an MPI_SUM over int64_t), then rounded once.

#include <array>
#include <cstdint>
#include <span>

namespace llmtrain {

class ExactSum {
 public:
  /// Bits 2^-1074 .. 2^1023 plus room for carries.
  static constexpr int limb_count = 68;
  /// At most 2^30 additions between two calls of carry(), which add(ExactSum) and an all-reduce do.
  void add(double value);
  void add(const ExactSum& other);
  /// Correctly rounded (to nearest, ties to even). NaN if any NaN, or infinities of both signs, were added.
  double value() const;
  /// Moves what does not fit a limb's payload to the next: the value stays, limbs of 2^30 sums may be added, and equal
  /// values have equal limbs.
  void carry();
  void clear() { *this = ExactSum(); }

  /// limb_count integers plus three counts (NaN, +inf, -inf): what an all-reduce sums.
  std::span<int64_t> limbs() { return limbs_; }
  std::span<const int64_t> limbs() const { return limbs_; }

 private:
  std::array<int64_t, limb_count + 3> limbs_{};
};

}  // namespace llmtrain
