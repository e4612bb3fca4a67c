#pragma once
// Samples from the easiest to the hardest, and draws from the easiest ones.

#include <cstdint>
#include <span>
#include <vector>

#include "data/curriculum_config.hpp"
#include "data/stream/sample_source.hpp"
#include "parallel/communicator.hpp"

namespace llmtrain {

/// Rarities of the samples of all sources, by number: sums of -log of the shares that their tokens have of all inputs,
/// nats. All ranks share the reading; equal for any number of them. Collective.
std::vector<double> sample_rarities(const std::vector<SampleSource>& sources, Communicator& communicator);

/// Difficulties of the samples of all sources, by number, as far as the tokens and their values tell: not the loss. For
/// a column the token files must have values. On this rank alone.
std::vector<double> sample_difficulties(const std::vector<SampleSource>& sources,
                                        CurriculumConfig::Difficulty::Kind kind);

class DifficultyOrder {
 public:
  /// `difficulties`: one for each sample of all sources, by number.
  DifficultyOrder(const std::vector<SampleSource>& sources, std::span<const double> difficulties);

  /// Number of samples that a value of the curriculum takes of a source, at least one.
  int64_t pool(size_t source, double value, CurriculumConfig::Scale scale) const;
  /// Returns draw number `draw` among the `pool` easiest samples of a source: each of them once in a random order, then
  /// again in another one. `level` identifies the pool and so the orders.
  int64_t sample(size_t source, int64_t pool, int64_t level, int64_t draw, uint64_t seed) const;
  /// Difficulties of a source's samples, ascending; infinite for samples without a target, if they are losses.
  const std::vector<double>& difficulties(size_t source) const { return order_[source].difficulties; }
  size_t sources() const { return order_.size(); }

 private:
  struct Order {
    std::vector<int64_t> samples;  ///< numbers among the samples of all sources, the easiest first
    std::vector<double> difficulties;
  };
  std::vector<Order> order_;  ///< by source
};

}  // namespace llmtrain
