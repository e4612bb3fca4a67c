#pragma once
#include <cstdint>

#include "params/reduction/reduction_tree.hpp"

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

/// Which groups of a step a rank computes in which round. In turn, each rank has the next `width` groups of a round,
/// then the next rank; else rank r has the run of groups [r * run, (r + 1) * run), one a round.
struct GroupSchedule {
  int64_t groups = 0;
  int64_t ranks = 1;
  int64_t run = 0;    ///< 0: in turn
  int64_t width = 1;  ///< in turn: groups of a rank in a round

  int64_t rounds() const { return run > 0 ? run : (groups + ranks * width - 1) / (ranks * width); }
  /// The first group of a rank in a round; -1: none.
  int64_t group_of(int64_t round, int64_t rank) const {
    const int64_t group = run > 0 ? rank * run + round : (round * ranks + rank) * width;
    return group < groups ? group : -1;
  }
  /// True if gradients are exchanged in the round: with runs, which a rank adds itself, only in the last one.
  bool exchanges(int64_t round) const { return run == 0 || round + 1 == run; }
  /// The groups of a rank, or of consecutive ranks [rank, end), that are exchanged in the round.
  GroupRange exchanged(int64_t round, int64_t rank, int64_t end) const {
    if (!exchanges(round)) return {};
    const int64_t first = run > 0 ? rank * run : (round * ranks + rank) * width, per_rank = run > 0 ? run : width;
    return {std::min(first, groups), std::min(first + (end - rank) * per_rank, groups)};
  }
  GroupRange exchanged(int64_t round, int64_t rank) const { return exchanged(round, rank, rank + 1); }
};

}  // namespace llmtrain
