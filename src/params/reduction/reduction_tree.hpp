#pragma once
// The order of additions of parallel.reduction = tree, without data. A node of level l and index i is the sum over
// groups [i * 2^l, (i + 1) * 2^l) of a step: the sum of its two children, or the left one where the right one has no
// groups. Its value depends on its groups alone, so that any rank may form it, in any round.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace llmtrain {

/// Consecutive reduction groups [first, last) of a step.
struct GroupRange {
  int64_t first = 0, last = 0;
  bool empty() const { return first >= last; }
  int64_t count() const { return std::max<int64_t>(last - first, 0); }
  bool operator==(const GroupRange&) const = default;
};

/// The largest node of a range of a step of `groups` groups that begins with its first group.
GroupRange first_node(const GroupRange& range, int64_t groups);

/// Calls visit(node) for the largest nodes that cover `range`, from left to right.
template <class Visit>
void each_node(GroupRange range, int64_t groups, const Visit& visit) {
  while (!range.empty()) {
    const GroupRange node = first_node(range, groups);
    visit(node);
    range.first = node.last;
  }
}

/// Number of these nodes.
int64_t node_count(const GroupRange& range, int64_t groups);

/// Additions of values that are nodes, ordered by their groups, as far as the tree allows.
class TreeFold {
 public:
  /// A node whose value is the sum of inputs [begin, end).
  struct Sum {
    GroupRange groups;
    size_t begin, end;
  };

  void start(int64_t groups);
  void push(const GroupRange& node);
  std::span<const Sum> sums() const { return sums_; }
  /// For each input of the sum: how many additions of the two last values follow it. See add_tree().
  std::span<const uint8_t> additions(const Sum& sum) const {
    return std::span(additions_).subspan(sum.begin, sum.end - sum.begin);
  }

 private:
  bool are_siblings(const GroupRange& left, const GroupRange& right) const;

  int64_t groups_ = 0;
  std::vector<Sum> sums_;
  std::vector<uint8_t> additions_;  ///< by input
};

}  // namespace llmtrain
