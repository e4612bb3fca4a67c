#pragma once
// A sum of doubles that is independent of order, partition and threads: a fixed-point accumulator that spans the whole
// range of double in 64-bit limbs of 32 payload bits (Kulisch). Limbs of several accumulators may be added as integers
// (an MPI_SUM over int64_t), then rounded once.

#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "core/host_device.hpp"

namespace llmtrain {

class ExactSum {
 public:
  static constexpr int limb_bits = 32;
  /// Bits 2^-1074 .. 2^1023 plus room for carries.
  static constexpr int limb_count = 68;
  /// The limbs and after them the counts of NaN, +inf, -inf.
  static constexpr int integer_count = limb_count + 3;
  /// At most 2^30 additions between two calls of carry(), which add(ExactSum) and an all-reduce do.
  void add(double value);
  void add(const ExactSum& other);
  /// Correctly rounded (to nearest, ties to even). NaN if any NaN, or infinities of both signs, were added.
  double value() const;
  /// Moves what does not fit a limb's payload to the next: the value stays, limbs of 2^30 sums may be added, and equal
  /// values have equal limbs.
  void carry();
  void clear() { *this = ExactSum(); }

  /// integer_count integers: what an all-reduce sums.
  std::span<int64_t> limbs() { return limbs_; }
  std::span<const int64_t> limbs() const { return limbs_; }

 private:
  std::array<int64_t, integer_count> limbs_{};
};

/// What adding a double adds to an ExactSum's integers, from number `first` on. For both devices.
struct ExactTerm {
  int first;
  int count;
  int64_t parts[3];

  LLMTRAIN_HOST_DEVICE explicit ExactTerm(double value) {
    const uint64_t bits = std::bit_cast<uint64_t>(value);
    const bool negative = (bits >> 63) != 0;
    const int biased = static_cast<int>((bits >> 52) & 0x7FFu);
    uint64_t mantissa = bits & 0xFFFFFFFFFFFFFu;
    if (biased == 0x7FF) {
      first = ExactSum::limb_count + (mantissa != 0 ? 0 : negative ? 2 : 1);
      count = 1;
      parts[0] = 1;
      return;
    }
    if (biased != 0) mantissa |= uint64_t{1} << 52;
    const int position = biased == 0 ? 0 : biased - 1;  // of the mantissa's lowest bit; subnormals share exponent 1
    const int shift = position % ExactSum::limb_bits;
    const uint64_t low = (mantissa & 0xFFFFFFFFu) << shift;
    const uint64_t high = (mantissa >> ExactSum::limb_bits) << shift;  // at most 21 + 31 bits
    first = position / ExactSum::limb_bits;
    count = 3;
    parts[0] = static_cast<int64_t>(low & 0xFFFFFFFFu);
    parts[1] = static_cast<int64_t>((low >> ExactSum::limb_bits) + (high & 0xFFFFFFFFu));
    parts[2] = static_cast<int64_t>(high >> ExactSum::limb_bits);
    for (int64_t& part : parts) part = negative ? -part : part;
  }
};

}  // namespace llmtrain
