#include "core/exact_sum.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace llmtrain {
namespace {

constexpr int limb_bits = ExactSum::limb_bits;
constexpr int lowest_exponent = -1074;  // of bit 0 of limb 0
constexpr size_t nan_count = ExactSum::limb_count;
constexpr size_t positive_infinities = nan_count + 1;
constexpr size_t negative_infinities = nan_count + 2;

using Magnitude = std::array<uint64_t, ExactSum::limb_count>;  // each below 2^32

/// Carries propagated from the lowest limb up; returns whether the number is negative, `out` is its magnitude.
bool normalize(std::span<const int64_t> limbs, Magnitude& out) {
  int64_t carry = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    // |limb| <= 2^62 and |carry| <= 2^31: no overflow. The arithmetic shift floors, so the remainder is never negative.
    const int64_t sum = limbs[i] + carry;
    carry = sum >> limb_bits;
    out[i] = static_cast<uint64_t>(sum - carry * (int64_t{1} << limb_bits));
  }
  if (carry >= 0) return false;
  uint64_t borrow = 1;  // two's complement negation
  for (uint64_t& limb : out) {
    const uint64_t sum = (~limb & 0xFFFFFFFFu) + borrow;
    limb = sum & 0xFFFFFFFFu;
    borrow = sum >> limb_bits;
  }
  return true;
}

bool bit_at(const Magnitude& m, int position) {
  return ((m[static_cast<size_t>(position / limb_bits)] >> (position % limb_bits)) & 1u) != 0;
}

bool any_below(const Magnitude& m, int position) {
  const size_t whole = static_cast<size_t>(position / limb_bits);
  if (std::any_of(m.begin(), m.begin() + static_cast<int64_t>(whole), [](uint64_t limb) { return limb != 0; })) {
    return true;
  }
  return (m[whole] & ((uint64_t{1} << (position % limb_bits)) - 1)) != 0;
}

}  // namespace

void ExactSum::add(double value) {
  const ExactTerm term(value);
  int64_t* first = limbs_.data() + term.first;
  for (int i = 0; i < term.count; ++i) first[i] += term.parts[i];
}

void ExactSum::add(const ExactSum& other) {
  carry();
  ExactSum small = other;
  small.carry();
  for (size_t i = 0; i < limbs_.size(); ++i) limbs_[i] += small.limbs_[i];
}

void ExactSum::carry() {
  for (size_t i = 0; i + 1 < static_cast<size_t>(limb_count); ++i) {
    const int64_t up = limbs_[i] >> limb_bits;  // rounds down: what remains is never negative
    limbs_[i] -= up * (int64_t{1} << limb_bits);
    limbs_[i + 1] += up;
  }
}

double ExactSum::value() const {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const bool up = limbs_[positive_infinities] != 0, down = limbs_[negative_infinities] != 0;
  if (limbs_[nan_count] != 0 || (up && down)) return std::numeric_limits<double>::quiet_NaN();
  if (up || down) return up ? infinity : -infinity;

  Magnitude m;
  const bool negative = normalize(std::span(limbs_).first(limb_count), m);
  int top = limb_count - 1;
  while (top >= 0 && m[static_cast<size_t>(top)] == 0) --top;
  if (top < 0) return 0;
  const int highest = top * limb_bits + std::bit_width(m[static_cast<size_t>(top)]) - 1;
  const int lowest = std::max(highest - 52, 0);  // bit 0 is the smallest subnormal: nothing is lost below it
  uint64_t mantissa = 0;
  for (int i = highest; i >= lowest; --i) mantissa = mantissa << 1 | static_cast<uint64_t>(bit_at(m, i));
  if (lowest > 0 && bit_at(m, lowest - 1)) {
    const bool odd = (mantissa & 1u) != 0;
    if (odd || any_below(m, lowest - 1)) ++mantissa;
  }
  const double magnitude = std::ldexp(static_cast<double>(mantissa), lowest + lowest_exponent);
  return negative ? -magnitude : magnitude;
}

}  // namespace llmtrain
