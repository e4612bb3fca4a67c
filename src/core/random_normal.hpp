#pragma once
// Standard normal numbers: Box & Muller 1958 in double, over Philox. Every sum of a product is an explicit fma and no
// library function is called, so that all processors and compilers, with or without vectors, give the same bits.

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/philox.hpp"

namespace llmtrain {

struct NormalPair {
  double even, odd;
};

/// ln(u) of a normal number u <= 1, to 2e-16 of its value: u = 2^k m, ln m = 2 artanh((m - 1) / (m + 1)).
LLMTRAIN_HOST_DEVICE inline double log_of_uniform(double u) {
  const auto bits = std::bit_cast<uint64_t>(u);
  const uint64_t scaled = (bits - std::bit_cast<uint64_t>(0x1.6a09e667f3bcdp-1) + (uint64_t{1024} << 52)) >> 52;
  const double m = std::bit_cast<double>(bits - ((scaled - 1024) << 52));  // sqrt(1/2) to sqrt(2)
  const double k = std::bit_cast<double>(scaled | 0x4330000000000000u) - (0x1p52 + 1024);
  const double s = (m - 1) / (m + 1), square = s * s;
  double p = 1.0 / 23;
  p = std::fma(p, square, 1.0 / 21);
  p = std::fma(p, square, 1.0 / 19);
  p = std::fma(p, square, 1.0 / 17);
  p = std::fma(p, square, 1.0 / 15);
  p = std::fma(p, square, 1.0 / 13);
  p = std::fma(p, square, 1.0 / 11);
  p = std::fma(p, square, 1.0 / 9);
  p = std::fma(p, square, 1.0 / 7);
  p = std::fma(p, square, 1.0 / 5);
  p = std::fma(p, square, 1.0 / 3);
  const double twice = s + s;
  return std::fma(k, 0x1.62e42fefa39efp-1, std::fma(twice * square, p, twice));
}

/// Cosine (even) and sine (odd) of quarters * pi / 2, 0 <= quarters < 2^20: Taylor series to 1e-16 within pi / 4.
LLMTRAIN_HOST_DEVICE inline NormalPair direction(double quarters) {
  constexpr double rounding = 0x1.8p52;  // when added, leaves the nearest integer in the low bits
  const double shifted = quarters + rounding;
  const auto quadrant = std::bit_cast<uint64_t>(shifted);
  const double y = (quarters - (shifted - rounding)) * 1.5707963267948966, square = y * y;
  double c = 1.0 / 20922789888000;  // 1 / 16!
  c = std::fma(c, square, -1.0 / 87178291200);
  c = std::fma(c, square, 1.0 / 479001600);
  c = std::fma(c, square, -1.0 / 3628800);
  c = std::fma(c, square, 1.0 / 40320);
  c = std::fma(c, square, -1.0 / 720);
  c = std::fma(c, square, 1.0 / 24);
  c = std::fma(c, square, -0.5);
  c = std::fma(c, square, 1.0);
  double s = 1.0 / 355687428096000;  // 1 / 17!
  s = std::fma(s, square, -1.0 / 1307674368000);
  s = std::fma(s, square, 1.0 / 6227020800);
  s = std::fma(s, square, -1.0 / 39916800);
  s = std::fma(s, square, 1.0 / 362880);
  s = std::fma(s, square, -1.0 / 5040);
  s = std::fma(s, square, 1.0 / 120);
  s = std::fma(s, square, -1.0 / 6);
  s = std::fma(s * square, y, y);
  const auto cosine = std::bit_cast<uint64_t>(c), sine = std::bit_cast<uint64_t>(s);
  const uint64_t swapped = (0 - (quadrant & 1)) & (cosine ^ sine);
  return {std::bit_cast<double>(cosine ^ swapped ^ (((quadrant + 1) & 2) << 62)),
          std::bit_cast<double>(sine ^ swapped ^ ((quadrant & 2) << 62))};
}

/// Normal number from 53 bits, the upper ones of high and low, and 32 bits of the angle.
LLMTRAIN_HOST_DEVICE inline NormalPair normal_pair(uint32_t high, uint32_t low, uint32_t angle) {
  const auto wide = [](uint32_t x) { return std::bit_cast<double>(x | 0x4330000000000000u) - 0x1p52; };
  const double radius_uniform = (std::fma(wide(high), 0x1p21, wide(low >> 11)) + 0.5) * 0x1p-53;  // in (0, 1]
  const double radius = std::sqrt(-2.0 * log_of_uniform(radius_uniform));
  const NormalPair at = direction((wide(angle) + 0.5) * 0x1p-30);
  return {radius * at.even, radius * at.odd};
}

/// Element `element` of a stream of standard normal numbers. Two neighbours share a Philox evaluation.
LLMTRAIN_HOST_DEVICE inline double random_normal(uint64_t key, uint64_t element) {
  const Philox4 r = philox4x32(key, 0, element >> 1);
  const NormalPair pair = normal_pair(r.v[0], r.v[1], r.v[2]);
  return (element & 1) == 0 ? pair.even : pair.odd;
}

}  // namespace llmtrain
