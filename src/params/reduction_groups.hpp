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

}  // namespace llmtrain
