#include "params/reduction/reduction_tree.hpp"

#include <bit>

#include "core/error.hpp"

namespace llmtrain {

GroupRange first_node(const GroupRange& range, int64_t groups) {
  const auto fits = [&](int64_t size) {
    return range.first + size <= range.last || (range.last == groups && range.first + size / 2 < range.last);
  };
  int64_t size = 1;
  while (range.first % (2 * size) == 0 && fits(2 * size)) size *= 2;
  return {range.first, std::min(range.first + size, range.last)};
}

int64_t node_count(const GroupRange& range, int64_t groups) {
  int64_t count = 0;
  each_node(range, groups, [&](const GroupRange&) { ++count; });
  return count;
}

void TreeFold::start(int64_t groups) {
  groups_ = groups;
  sums_.clear();
  additions_.clear();
}

bool TreeFold::are_siblings(const GroupRange& left, const GroupRange& right) const {
  const int64_t half = left.count();
  return left.last == right.first && std::has_single_bit(static_cast<uint64_t>(half)) && left.first % (2 * half) == 0 &&
         right.last == std::min(left.first + 2 * half, groups_);
}

void TreeFold::push(const GroupRange& node) {
  LLMTRAIN_CHECK(!node.empty() && (sums_.empty() || sums_.back().groups.last <= node.first),
                 "values of a tree are added in the order of their groups");
  const size_t input = additions_.size();
  additions_.push_back(0);
  sums_.push_back({node, input, input + 1});
  while (sums_.size() > 1 && are_siblings(sums_[sums_.size() - 2].groups, sums_.back().groups)) {
    Sum& left = sums_[sums_.size() - 2];
    left.groups.last = sums_.back().groups.last;
    left.end = sums_.back().end;
    sums_.pop_back();
    ++additions_[input];
  }
}

}  // namespace llmtrain
