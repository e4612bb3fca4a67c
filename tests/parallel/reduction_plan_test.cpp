#include "params/reduction/reduction_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "core/error.hpp"

namespace llmtrain {
namespace {

ParamStoreOptions options_of(int64_t groups, int ranks, int ranks_per_node, int stage) {
  ParamStoreOptions o;
  o.reduction = Reduction::tree;
  o.groups = groups;
  o.size = ranks;
  o.ranks_per_node = ranks_per_node;
  o.zero_stage = stage;
  return o;
}

/// The additions of groups [first, first + size) of a step as text, by definition.
std::string definition(int64_t groups, int64_t first, int64_t size) {
  if (size == 1) return std::to_string(first);
  const std::string left = definition(groups, first, size / 2);
  if (first + size / 2 >= groups) return left;
  return "(" + left + "+" + definition(groups, first + size / 2, size / 2) + ")";
}

/// A value that a rank or a node has: its groups, and the additions that formed it.
struct Formed {
  GroupRange groups;
  std::string additions;
};

/// Adds values as add_tree() does.
std::vector<Formed> add(const std::vector<Formed>& values, int64_t groups) {
  TreeFold fold;
  fold.start(groups);
  for (const Formed& value : values) fold.push(value.groups);
  std::vector<Formed> sums;
  for (const TreeFold::Sum& sum : fold.sums()) {
    std::vector<std::string> stack;
    for (size_t i = sum.begin; i < sum.end; ++i) {
      stack.push_back(values[i].additions);
      for (int n = 0; n < fold.additions(sum)[i - sum.begin]; ++n) {
        const std::string right = stack.back();
        stack.pop_back();
        stack.back() = "(" + stack.back() + "+" + right + ")";
      }
    }
    EXPECT_EQ(stack.size(), 1U);
    sums.push_back({sum.groups, stack.back()});
  }
  return sums;
}

struct Counted {
  std::string total;
  int64_t computed = 0;     ///< groups
  int64_t values = 0;       ///< of a rank in an exchange
  int64_t node_values = 0;  ///< of a node
  int64_t run_sums = 0;     ///< of a rank
  int64_t owner_sums = 0;
};

/// Plays a step: ranks add their runs, nodes the values of their ranks, the owner the values of nodes.
Counted play(const ReductionPlan& plan, int ranks, int64_t groups) {
  Counted counted;
  const GroupSchedule schedule = plan.schedule(groups);
  std::vector<std::vector<Formed>> of_rank(static_cast<size_t>(ranks));
  std::vector<Formed> total;
  for (int64_t round = 0; round < schedule.rounds(); ++round) {
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t group = schedule.group_of(round, rank);
      if (group < 0) continue;
      ++counted.computed;
      std::vector<Formed>& own = of_rank[static_cast<size_t>(rank)];
      own.push_back({{group, group + 1}, std::to_string(group)});
      own = add(own, groups);
      counted.run_sums = std::max(counted.run_sums, static_cast<int64_t>(own.size()));
    }
    if (!schedule.exchanges(round)) continue;
    const NodeGrid nodes = plan.by_node() ? plan.nodes() : NodeGrid{ranks, 1};
    for (int64_t node = 0; node < nodes.nodes(); ++node) {
      std::vector<Formed> of_node;
      const int64_t first = nodes.first_rank(node), end = first + nodes.size_of(node);
      for (int64_t rank = first; rank < end; ++rank) {
        std::vector<Formed>& own = of_rank[static_cast<size_t>(rank)];
        std::vector<GroupRange> expected;
        each_node(schedule.exchanged(round, rank), groups, [&](const GroupRange& g) { expected.push_back(g); });
        EXPECT_EQ(own.size(), expected.size());
        for (size_t i = 0; i < own.size(); ++i) EXPECT_EQ(own[i].groups, expected[i]);
        counted.values = std::max(counted.values, static_cast<int64_t>(own.size()));
        of_node.insert(of_node.end(), own.begin(), own.end());
        own.clear();
      }
      if (plan.by_node()) of_node = add(of_node, groups);
      EXPECT_LE(std::ssize(of_node), plan.by_node() ? plan.max_node_values() : plan.max_values());
      counted.node_values = std::max(counted.node_values, static_cast<int64_t>(of_node.size()));
      total.insert(total.end(), of_node.begin(), of_node.end());
    }
    total = add(total, groups);
    counted.owner_sums = std::max(counted.owner_sums, static_cast<int64_t>(total.size()));
  }
  EXPECT_EQ(total.size(), 1U);
  counted.total = total.front().additions;
  return counted;
}

TEST(ReductionPlan, EveryLayoutAddsAsTheTreeIsDefined) {
  EXPECT_EQ(definition(5, 0, 8), "(((0+1)+(2+3))+4)");
  for (const int64_t groups : {1, 2, 3, 5, 8, 12, 15, 16, 23}) {
    for (const int ranks : {1, 2, 3, 4, 6, 8, 16}) {
      for (const int per_node : {1, 2, 3, 4}) {
        for (const int stage : {1, 2}) {
          const ReductionPlan plan(options_of(groups, ranks, per_node, stage));
          for (int64_t used = 1; used <= groups; ++used) {
            const Counted counted = play(plan, ranks, used);
            EXPECT_EQ(counted.total, definition(used, 0, 32)) << groups << " " << ranks << " " << per_node;
            EXPECT_EQ(counted.computed, used);
            EXPECT_LE(counted.values, plan.max_values());
            EXPECT_LE(counted.owner_sums, plan.max_owner_sums());
            EXPECT_LE(counted.run_sums, std::max<int64_t>(plan.max_run_sums(), 1));
          }
        }
      }
    }
  }
}

TEST(ReductionPlan, AStepOfAGroupForEachRankCrossesTheNetworkOnceAndKeepsNothing) {
  for (const int ranks : {64, 96, 512, 4096}) {
    for (int stage = 0; stage <= 3; ++stage) {
      const ReductionPlan plan(options_of(ranks, ranks, 8, stage));
      EXPECT_EQ(plan.schedule(ranks).rounds(), 1);
      EXPECT_EQ(plan.max_values(), 1);
      EXPECT_EQ(plan.max_node_values(), 1);
      EXPECT_EQ(plan.max_run_sums(), 0);
      EXPECT_EQ(plan.max_owner_sums(), 1);
    }
  }
}

TEST(ReductionPlan, RunsOfAPowerOfTwoAreSentOnce) {
  const ReductionPlan runs(options_of(4096 * 8, 4096, 8, 1));
  EXPECT_EQ(runs.schedule(4096 * 8).run, 8);
  EXPECT_EQ(runs.max_values(), 1);
  EXPECT_EQ(runs.max_node_values(), 1);
  EXPECT_EQ(runs.max_run_sums(), 3);
  EXPECT_EQ(runs.schedule(4096 * 4).run, 4) << "a short step";
  EXPECT_EQ(runs.schedule(4096 * 3).run, 4);
  const ReductionPlan in_turn(options_of(4096 * 8, 4096, 8, 2));
  EXPECT_EQ(in_turn.schedule(4096 * 8).rounds(), 8);
  EXPECT_EQ(in_turn.max_node_values(), 1);
  EXPECT_EQ(in_turn.max_owner_sums(), 3);
  const ReductionPlan odd(options_of(4096 * 15, 4096, 8, 1));  // 8 + 4 + 2 + 1, beginning anywhere
  EXPECT_EQ(odd.max_values(), 4);
  EXPECT_LE(odd.max_node_values(), 12);
}

TEST(ReductionPlan, HasNoBlocks) {
  ParamStoreOptions options = options_of(4, 2, 0, 1);
  options.blocks = 2;
  EXPECT_THROW(ReductionPlan{options}, Error);
}

TEST(TreeFold, RefusesGroupsThatComeBack) {
  TreeFold fold;
  fold.start(4);
  fold.push({1, 2});
  EXPECT_THROW(fold.push({0, 1}), Error);
  EXPECT_THROW(fold.push({3, 3}), Error);
}

TEST(NodeGrid, EveryRankHasAPartnerOnEveryNode) {
  const NodeGrid grid{11, 4};
  EXPECT_EQ(grid.nodes(), 3);
  EXPECT_EQ(grid.size_of(2), 3);
  EXPECT_EQ(grid.speaker(2, 1), 9);
  EXPECT_EQ(grid.speaker(2, 7), 8) << "a smaller node";
  EXPECT_EQ(grid.speaker(0, 9), 1);
  EXPECT_FALSE((NodeGrid{4, 4}).has_levels());
  EXPECT_FALSE((NodeGrid{4, 1}).has_levels());
  EXPECT_TRUE((NodeGrid{5, 4}).has_levels());
}

}  // namespace
}  // namespace llmtrain
