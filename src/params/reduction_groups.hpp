#pragma once
#include <cstdint>

namespace llmtrain {

/// Division of a step's micro-batches into `count` groups of consecutive ones, as equal as possible.
struct ReductionGroups {
  /// `count` 0: every micro-batch is a group.
  ReductionGroups(int64_t micro_batches, int64_t count);
  int64_t begin(int64_t group) const { return group * micro_batches / count; }
  int64_t max_size() const { return (micro_batches + count - 1) / count; }
  /// Number of groups of a step that has only the first `present` micro-batches, such as the last one of an epoch.
  int64_t used(int64_t present) const;

  int64_t micro_batches;
  int64_t count;
};

/// Which group of a step a rank computes in which round: group g is that of rank g mod `ranks` in round g / `ranks`.
struct GroupSchedule {
  int64_t groups = 0;
  int64_t ranks = 1;

  int64_t rounds() const { return (groups + ranks - 1) / ranks; }
  /// -1: none.
  int64_t group_of(int64_t round, int64_t rank) const {
    const int64_t group = round * ranks + rank;
    return group < groups ? group : -1;
  }
};

}  // namespace llmtrain
