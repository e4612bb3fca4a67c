#pragma once
// Source of each sample of a mixed stream: a pure function of the sample's number.

#include <cstdint>
#include <span>
#include <vector>

namespace llmtrain {

/// Sources take turns in a fixed cycle. Each has its exact share of the cycle and, of the first n samples for any n,
/// its share to within less than one sample (and of any n consecutive samples to within less than two): Tijdeman, "The
/// chairman assignment problem", Discrete Mathematics 32 (1980). Shares are exact if the weights are decimals whose
/// cycle has at most 2^20 entries, such as 0.7, 0.3 (10 entries), otherwise rounded to multiples of 2^-20.
class Mixture {
 public:
  static constexpr size_t max_sources = 256;
  static constexpr int64_t longest_cycle = int64_t{1} << 20;

  /// Weights are positive; their sum need not be 1.
  explicit Mixture(std::span<const double> weights);

  struct Choice {
    size_t source;
    int64_t number;  ///< index of the sample among those taken from this source, from 0
  };
  Choice operator()(int64_t sample) const;
  /// Number of samples that are taken from a source before this one.
  int64_t taken_before(int64_t sample, size_t source) const;
  /// Returns the samples of each source in a cycle.
  std::span<const int64_t> shares() const { return shares_; }
  int64_t cycle() const { return static_cast<int64_t>(source_.size()); }

 private:
  std::vector<int64_t> shares_;
  std::vector<uint8_t> source_;  // source of each entry of the cycle
  std::vector<int32_t> number_;  // index of the sample among those of its source in the cycle
};

}  // namespace llmtrain
