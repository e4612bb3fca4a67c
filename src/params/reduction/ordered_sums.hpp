#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "params/reduction/group_sums.hpp"

namespace llmtrain {

/// total = sum over blocks of (sum over the block's groups), each from the left. The first block is formed in the
/// total. Blocks are consecutive runs of groups of a full step, as equal as possible: a short step omits the last
/// groups, and no group changes its block.
class OrderedSums final : public GroupSums {
 public:
  explicit OrderedSums(const UnitStates& units);
  void plan(Arena& arena) override;
  void begin_step(int64_t groups) override { groups_ = groups; }
  /// Every range has one group.
  void add(int unit, size_t segment, std::span<const GroupRange> groups, std::span<const Tensor> gradients,
           Stream& stream) override;
  const Tensor& total(int unit, size_t segment) const override { return at(unit, segment).total; }
  uint64_t key(int64_t group) const override;

 private:
  struct Sum {
    Tensor total, block;  ///< over blocks; inside a block
  };
  /// Destination of `count` groups of one block, from `group` on.
  struct Target {
    bool to_total;      ///< true: the total; false: the block's sum
    bool begins, ends;  ///< the groups begin or end the block
  };
  Target target_of(int64_t group, int64_t count) const;
  int64_t block_of(int64_t group) const { return group * max_blocks_ / max_groups_; }
  bool has_block_sums() const;
  const Sum& at(int unit, size_t segment) const { return sums_[static_cast<size_t>(unit)][segment]; }

  const UnitStates& units_;
  const int64_t max_groups_ = units_.options().groups, max_blocks_ = units_.options().blocks;  ///< of a full step
  int64_t groups_ = 0;                                                                         ///< in the current step
  std::vector<std::vector<Sum>> sums_;  ///< by unit and segment; no data for frozen units
};

}  // namespace llmtrain
