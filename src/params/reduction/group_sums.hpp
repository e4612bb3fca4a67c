#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/arena.hpp"
#include "params/reduction/reduction_groups.hpp"
#include "params/unit_state.hpp"

namespace llmtrain {

/// Sums over reduction groups at the owner of a shard, and the order of their additions, on which every bit depends.
class GroupSums {
 public:
  virtual ~GroupSums() = default;
  virtual void plan(Arena& arena) = 0;

  virtual void begin_step(int64_t groups) = 0;
  /// Adds this rank's shard of the segment's gradients: sums over consecutive ranges of groups, which follow those that
  /// were added before.
  virtual void add(int unit, size_t segment, std::span<const GroupRange> groups, std::span<const Tensor> gradients,
                   Stream& stream) = 0;
  /// fp32, this rank's shard of the segment, after all groups.
  virtual const Tensor& total(int unit, size_t segment) const = 0;
  /// Key that is equal for groups which are added by the same operations, each alone.
  virtual uint64_t key(int64_t group) const = 0;
};

/// Null for one rank and one group: the gradient is the sum, and nothing is added.
std::unique_ptr<GroupSums> make_group_sums(const UnitStates& units, int64_t max_owner_sums);

}  // namespace llmtrain
