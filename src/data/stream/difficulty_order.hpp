#pragma once
// Samples from the easiest to the hardest, and draws from the easiest ones.

#include <cstdint>
#include <vector>

#include "data/curriculum_config.hpp"
#include "data/stream/sample_source.hpp"

namespace llmtrain {

class DifficultyOrder {
 public:
  /// Reads all tokens for the rarity, on all threads of this process; equal for any number of them.
  DifficultyOrder(const std::vector<SampleSource>& sources, CurriculumConfig::Difficulty difficulty);

  /// Returns draw number `draw` among the easiest `percent` of a source's samples, at least one: each of them once in a
  /// random order, then again in another one. `level` identifies the percentage and so the orders.
  int64_t sample(size_t source, int64_t percent, int64_t level, int64_t draw, uint64_t seed) const;
  /// The samples of a source, the easiest first; equal ones in their order.
  const std::vector<int64_t>& easiest_first(size_t source) const { return order_[source]; }

 private:
  std::vector<std::vector<int64_t>> order_;  ///< numbers of samples of all sources, by source
};

}  // namespace llmtrain
