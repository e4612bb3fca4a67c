#include "params/reduction_plan.hpp"

#include <algorithm>
#include <bit>

#include "core/error.hpp"

namespace llmtrain {

namespace {

/// Exchanges of a segment that one rank starts at once; NodeMemory has boards for some more.
constexpr int64_t most_values = 16;

int64_t divided(int64_t groups, int64_t ranks) { return (groups + ranks - 1) / ranks; }

}  // namespace

ReductionPlan::ReductionPlan(const ParamStoreOptions& o)
    : tree_(o.reduction == Reduction::tree),
      groups_(o.groups),
      ranks_(o.size),
      nodes_{o.size, std::max(o.ranks_per_node, 1)} {
  if (!tree_) return;
  LLMTRAIN_CHECK(o.blocks == 1, "a tree has no reduction blocks");
  const int64_t run = divided(groups_, ranks_);
  if (o.zero_stage <= 1 && ranks_ > 1 && run > 1) {
    for (int64_t first = 0; first < groups_; first += run) {
      max_values_ = std::max(max_values_, node_count({first, std::min(first + run, groups_)}, groups_));
    }
    if (max_values_ <= most_values) run_ = run;
    if (run_ == 0) max_values_ = 1;
  }
  count_sums(schedule(groups_));
}

GroupSchedule ReductionPlan::schedule(int64_t groups) const {
  GroupSchedule schedule{groups, ranks_, run_};
  while (schedule.run > 1 && schedule.run % 2 == 0 && schedule.run / 2 >= divided(groups, ranks_)) schedule.run /= 2;
  return schedule;
}

/// A short step omits the last groups, which adds no node to a range.
void ReductionPlan::count_sums(const GroupSchedule& full) {
  for (int64_t rank = 0; rank * full.run < groups_ && full.run > 1; ++rank) {
    const GroupRange run = full.exchanged(full.run - 1, rank);
    for (int64_t last = run.first + 1; last <= run.last; ++last) {
      max_run_sums_ = std::max(max_run_sums_, node_count({run.first, last}, groups_));
    }
  }
  for (int64_t round = 0; round < full.rounds(); ++round) {
    const int64_t before = full.run > 0 ? 0 : round * ranks_;
    max_owner_sums_ = std::max<int64_t>(max_owner_sums_, std::popcount(static_cast<uint64_t>(before)));
    for (int64_t node = 0; by_node() && node < nodes_.nodes() && full.exchanges(round); ++node) {
      const int64_t first = nodes_.first_rank(node);
      const GroupRange range = full.exchanged(round, first, first + nodes_.size_of(node));
      if (range.empty()) break;
      max_node_values_ = std::max(max_node_values_, node_count(range, groups_));
    }
  }
}

}  // namespace llmtrain
