#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "params/reduction/group_sums.hpp"

namespace llmtrain {

/// Sums along the tree (reduction_tree.hpp): of shards at their owner, or of whole segments on the rank that has a run
/// of groups. The values that were added so far are the fewest nodes that cover them; the i-th one has the i-th buffer.
class TreeSums final : public GroupSums {
 public:
  enum class Part : uint8_t { shard, segment };
  /// `buffers`: maximum number of nodes between two calls of add().
  TreeSums(const UnitStates& units, Part part, int64_t buffers);
  void plan(Arena& arena) override;
  void begin_step(int64_t groups) override { begin_step(groups, 0); }
  /// The same for a rank whose run begins with this group.
  void begin_step(int64_t groups, int64_t first);
  /// Every range is a node.
  void add(int unit, size_t segment, std::span<const GroupRange> groups, std::span<const Tensor> gradients,
           Stream& stream) override;
  const Tensor& total(int unit, size_t segment) const override { return sum(unit, segment, 0); }
  /// The value of the i-th node.
  const Tensor& sum(int unit, size_t segment, size_t i) const { return sums_[static_cast<size_t>(unit)][segment][i]; }
  uint64_t key(int64_t group) const override;

 private:
  const UnitStates& units_;
  Part part_;
  size_t buffers_;
  int64_t groups_ = 0, first_ = 0;                      ///< of the current step
  std::vector<std::vector<std::vector<Tensor>>> sums_;  ///< by unit, segment and node
  TreeFold fold_;
  std::vector<Tensor> inputs_;
};

}  // namespace llmtrain
