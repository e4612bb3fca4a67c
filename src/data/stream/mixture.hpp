#pragma once
// From which source each sample of a mixed stream comes: a pure function of the sample's number.

#include <cstdint>
#include <span>
#include <vector>

namespace llmtrain {

/// Sources take turns in a fixed cycle, in which each has its share exactly, and of the first n samples, for any n,
/// each has its share to within less than one sample (so over any window to within less than two): Tijdeman, "The
/// chairman assignment problem", Discrete Mathematics 32 (1980). Shares are exact where the weights are decimals whose
/// cycle has at most 2^20 places, as 0.7, 0.3 (10 places), else rounded to multiples of 2^-20.
class Mixture {
 public:
  static constexpr size_t max_sources = 256;
  static constexpr int64_t longest_cycle = int64_t{1} << 20;

  /// Weights are positive; their sum need not be 1.
  explicit Mixture(std::span<const double> weights);

  struct Choice {
    size_t source;
    int64_t number;  ///< counts the samples taken from this source, from 0
  };
  Choice operator()(int64_t sample) const;
  /// Samples of each source in a cycle.
  std::span<const int64_t> shares() const { return shares_; }
  int64_t cycle() const { return static_cast<int64_t>(source_.size()); }

 private:
  std::vector<int64_t> shares_;
  std::vector<uint8_t> source_;  // of each place in the cycle
  std::vector<int32_t> number_;  // of the sample among those of its source in the cycle
};

}  // namespace llmtrain
