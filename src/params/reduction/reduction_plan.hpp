#pragma once
#include <cstdint>

#include "parallel/node_grid.hpp"
#include "params/param_policy.hpp"
#include "params/reduction/reduction_groups.hpp"
#include "params/reduction/reduction_tree.hpp"

namespace llmtrain {

/// How the ranks share the additions of a step, which follows from the options alone. Ordered sums are formed by the
/// owners, from groups that ranks compute in turn. With a tree this is so at stages 2 and 3, where a rank has no memory
/// for a whole gradient; at stages 0 and 1 a rank has a run of groups, adds them itself, and sends its nodes once a
/// step. Where nodes of several ranks share memory, the ranks of a node add their nodes before these are sent.
class ReductionPlan {
 public:
  explicit ReductionPlan(const ParamStoreOptions& options);

  bool tree() const { return tree_; }
  /// True if ranks add several groups themselves.
  bool sums_runs() const { return run_ > 1; }
  /// True if the ranks of a node add before they send to other nodes.
  bool by_node() const { return tree_ && nodes_.has_levels(); }
  /// A step of at most as many groups as were planned. A short one has runs of the same length, or a half, a quarter
  /// ... of it, which need no more memory.
  GroupSchedule schedule(int64_t groups) const;

  /// Calls visit(groups) for the values that stand for consecutive groups: one for each, or along the tree the nodes
  /// that cover them.
  template <class Visit>
  void each_value(const GroupRange& range, int64_t groups, const Visit& visit) const {
    if (tree_) return each_node(range, groups, visit);
    for (int64_t group = range.first; group < range.last; ++group) visit(GroupRange{group, group + 1});
  }

  /// Exchanges of segments that are in progress at once. Along a tree over several nodes a rank has something to send
  /// while it waits for the latest one. Values in order would need much memory, and very many nodes many requests.
  int64_t exchanges_at_once() const { return tree_ && nodes_.nodes() > 1 && nodes_.nodes() <= 256 ? 4 : 2; }

  // Maxima over all steps.
  int64_t max_values() const { return max_values_; }            ///< values that a rank exchanges at once
  int64_t max_node_values() const { return max_node_values_; }  ///< nodes that a node's ranks exchange, by_node()
  int64_t max_run_sums() const { return max_run_sums_; }        ///< sums that a rank keeps of its run
  int64_t max_owner_sums() const { return max_owner_sums_; }    ///< sums that the owner of a shard keeps

  /// The grid has all ranks. Where the ranks of a node cannot add, each is a node of its own.
  const NodeGrid& nodes() const { return nodes_; }

 private:
  void count_sums(const GroupSchedule& full);

  bool tree_;
  int64_t groups_, ranks_, width_;
  NodeGrid nodes_;
  int64_t run_ = 0;
  int64_t max_values_ = 1, max_node_values_ = 1, max_run_sums_ = 0, max_owner_sums_ = 1;
};

}  // namespace llmtrain
