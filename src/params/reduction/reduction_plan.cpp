#include "params/reduction/reduction_plan.hpp"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/error.hpp"

namespace llmtrain {

namespace {

/// Exchanges of a segment that one rank starts at once; NodeMemory has boards for some more.
constexpr int64_t most_values = 16;

int64_t divided(int64_t groups, int64_t ranks) { return (groups + ranks - 1) / ranks; }

/// Number of nodes that cover a range of a step which has further groups: a step that ends in it needs no more, and one
/// of half the groups, in runs of half the length, as many for half the range.
int64_t max_count(const GroupRange& range) {
  constexpr int64_t endless = std::numeric_limits<int64_t>::max() / 4;
  return node_count(range, endless);
}

}  // namespace

ReductionPlan::ReductionPlan(const ParamStoreOptions& o)
    : tree_(o.reduction == Reduction::tree),
      groups_(o.groups),
      ranks_(o.size),
      width_(o.groups_at_once),
      nodes_{o.size, std::max(o.ranks_per_node, 1)} {
  if (!tree_) {
    max_values_ = width_;
    return;
  }
  LLMTRAIN_CHECK(o.blocks == 1, "a tree has no reduction blocks");
  const int64_t run = divided(groups_, ranks_);
  if (!o.groups_in_turn && o.zero_stage <= 1 && ranks_ > 1 && run > 1) {
    for (int64_t first = 0; first < groups_; first += run) {
      max_values_ = std::max(max_values_, max_count({first, first + run}));
    }
    if (max_values_ <= most_values) run_ = run;
    if (run_ == 0) max_values_ = 1;
  }
  count_sums(schedule(groups_));
}

GroupSchedule ReductionPlan::schedule(int64_t groups) const {
  GroupSchedule schedule{groups, ranks_, run_, width_};
  while (schedule.run > 1 && schedule.run % 2 == 0 && schedule.run / 2 >= divided(groups, ranks_)) schedule.run /= 2;
  return schedule;
}

void ReductionPlan::count_sums(const GroupSchedule& full) {
  for (int64_t first = 0; first < groups_ && full.run > 1; first += full.run) {
    for (int64_t last = first + 1; last <= first + full.run; ++last) {
      max_run_sums_ = std::max(max_run_sums_, max_count({first, last}));
    }
  }
  for (int64_t round = 0; round < full.rounds(); ++round) {
    const int64_t before = full.run > 0 ? 0 : round * ranks_ * width_;
    max_owner_sums_ = std::max<int64_t>(max_owner_sums_, std::popcount(static_cast<uint64_t>(before)));
    for (int64_t node = 0; by_node() && node < nodes_.nodes() && full.exchanges(round); ++node) {
      const int64_t rank = nodes_.first_rank(node), ranks = nodes_.size_of(node);
      const int64_t per_rank = full.run > 0 ? full.run : width_, first = before + rank * per_rank;
      if (first >= groups_) break;
      max_node_values_ = std::max(max_node_values_, max_count({first, first + ranks * per_rank}));
    }
  }
}

}  // namespace llmtrain
