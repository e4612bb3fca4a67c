#pragma once
// A sum of doubles that is independent of order, partition and threads: a fixed-point accumulator that spans the whole
// range of double in 64-bit limbs of 32 payload bits (Kulisch). Limbs of several accumulators may be added as integers
// (an MPI_SUM over int64_t), then rounded once.

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <span>

#include "core/host_device.hpp"

namespace llmtrain {

class ExactSum {
 public:
  static constexpr int limb_bits = 32;
  /// Bits 2^-1074 .. 2^1023 plus room for carries.
  static constexpr int limb_count = 68;
  /// Limbs, then the counts of NaN, +inf, -inf.
  static constexpr int integer_count = limb_count + 3;
  /// Limit: 2^30 additions between two calls of carry(), which add(ExactSum) and an all-reduce call.
  void add(double value);
  void add(const ExactSum& other);
  /// Correctly rounded value (to nearest, ties to even). NaN if any NaN, or infinities of both signs, were added.
  double value() const;
  /// Carries the overflow of each limb to the next: the value stays, limbs of 2^30 sums may be added, and equal values
  /// have equal limbs.
  void carry();
  void clear() { *this = ExactSum(); }

  /// The integer_count integers that an all-reduce sums.
  std::span<int64_t> limbs() { return limbs_; }
  std::span<const int64_t> limbs() const { return limbs_; }

 private:
  std::array<int64_t, integer_count> limbs_{};
};

/// The integers that a double adds to those of an ExactSum, from number `first` on. For both devices.
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
    // position of the mantissa's lowest bit; subnormals share exponent 1
    const int position = biased == 0 ? 0 : biased - 1;
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

/// Carries in place, see ExactSum::carry(). For both devices.
LLMTRAIN_HOST_DEVICE inline void carry_exact(int64_t* integers) {
  for (int i = 0; i + 1 < ExactSum::limb_count; ++i) {
    const int64_t up = integers[i] >> ExactSum::limb_bits;  // rounds down, so that the remainder is never negative
    integers[i] -= up * (int64_t{1} << ExactSum::limb_bits);
    integers[i + 1] += up;
  }
}

/// Carries the integers and returns ExactSum::value(). For both devices.
LLMTRAIN_HOST_DEVICE inline double exact_value(int64_t* integers) {
  constexpr int bits = ExactSum::limb_bits, count = ExactSum::limb_count;
  constexpr int lowest_exponent = -1074;  // exponent of bit 0 of limb 0
  const bool up = integers[count + 1] != 0, down = integers[count + 2] != 0;
  if (integers[count] != 0 || (up && down)) return std::bit_cast<double>(uint64_t{0x7FF8000000000000});
  if (up || down) return std::bit_cast<double>(uint64_t{up ? 0x7FF0000000000000 : 0xFFF0000000000000});

  carry_exact(integers);
  const bool negative = integers[count - 1] < 0;
  int least = 0;  // lowest limb that is not zero
  while (least < count && integers[least] == 0) ++least;
  if (least == count) return 0;
  // Limbs of the magnitude; a negative number is negated by two's complement.
  const auto limb = [&](int i) {
    if (i < least) return uint64_t{0};
    const auto payload = static_cast<uint64_t>(integers[i]) & 0xFFFFFFFFu;
    return negative ? (payload ^ 0xFFFFFFFFu) + (i == least ? 1u : 0u) : payload;
  };
  const auto bit_at = [&](int position) { return (limb(position / bits) >> (position % bits)) & 1u; };
  int top = count - 1;
  while (limb(top) == 0) --top;
  int highest = top * bits + bits - 1;
  while (bit_at(highest) == 0) --highest;
  const int lowest = highest > 52 ? highest - 52 : 0;  // bit 0 is the smallest subnormal: nothing is lost below it
  uint64_t mantissa = 0;
  for (int i = highest; i >= lowest; --i) mantissa = mantissa << 1 | bit_at(i);
  if (lowest > 0 && bit_at(lowest - 1) != 0) {
    const int half = lowest - 1, whole = half / bits;
    const bool more = least < whole || (limb(whole) & ((uint64_t{1} << (half % bits)) - 1)) != 0;
    if ((mantissa & 1u) != 0 || more) ++mantissa;
  }
  const double magnitude = std::ldexp(static_cast<double>(mantissa), lowest + lowest_exponent);
  return negative ? -magnitude : magnitude;
}

}  // namespace llmtrain
