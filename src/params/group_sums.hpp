#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "core/arena.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

/// Sums over reduction groups at the owner of a shard, and the order of their additions, on which every bit depends:
/// total = sum over blocks of (sum over the block's groups), each from the left. The first block is formed in the
/// total. Blocks are consecutive runs of groups of a full step, as equal as possible: a short step omits the last
/// groups, and no group changes its block.
class GroupSums {
 public:
  explicit GroupSums(const UnitStates& units);
  /// True for one rank and one group: the gradient is the sum, and nothing is added.
  bool trivial() const { return trivial_; }
  void plan(Arena& arena);

  void begin_step(int64_t groups) { groups_ = groups; }
  /// Adds this rank's shard of the segment's gradients of consecutive groups, of which `group` is the first.
  void add(int unit, size_t segment, int64_t group, std::span<const Tensor> gradients, Stream& stream);
  /// fp32, this rank's shard of the segment.
  const Tensor& total(int unit, size_t segment) const { return sums_[static_cast<size_t>(unit)][segment].total; }
  /// Key below 16 that is equal for groups which are added by the same operations, each alone.
  uint64_t key(int64_t group) const;

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

  const UnitStates& units_;
  const int64_t max_groups_ = units_.options().groups, max_blocks_ = units_.options().blocks;  ///< of a full step
  const bool trivial_ = units_.options().size == 1 && max_groups_ == 1;
  int64_t groups_ = 0;                  ///< in the current step
  std::vector<std::vector<Sum>> sums_;  ///< by unit and segment; no data for frozen units
};

}  // namespace llmtrain
