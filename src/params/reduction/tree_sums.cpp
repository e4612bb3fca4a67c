#include "params/reduction/tree_sums.hpp"

#include <fmt/format.h>

#include "kernels/elementwise.hpp"
#include "params/reduction/ordered_sums.hpp"

namespace llmtrain {

std::unique_ptr<GroupSums> make_group_sums(const UnitStates& units, int64_t max_owner_sums) {
  const ParamStoreOptions& options = units.options();
  constexpr int64_t most = int64_t{1} << 30;
  LLMTRAIN_CHECK(options.groups >= 1 && options.groups <= most, "a step has at least one reduction group");
  LLMTRAIN_CHECK(options.blocks >= 1 && options.blocks <= options.groups, "a reduction block has at least one group");
  if (options.size == 1 && options.groups == 1) return nullptr;
  if (options.reduction == Reduction::ordered) return std::make_unique<OrderedSums>(units);
  return std::make_unique<TreeSums>(units, TreeSums::Part::shard, max_owner_sums);
}

TreeSums::TreeSums(const UnitStates& units, Part part, int64_t buffers)
    : units_(units), part_(part), buffers_(static_cast<size_t>(buffers)) {
  for (const UnitState& u : units) sums_.emplace_back(u.segments.size(), std::vector<Tensor>(buffers_));
}

void TreeSums::plan(Arena& arena) {
  const MemoryScope scope = part_ == Part::segment ? units_.options().exchanged() : MemoryScope::own;
  for (int unit = 0; unit < units_.size(); ++unit) {
    const UnitState& u = units_[unit];
    for (size_t i = 0; i < u.segments.size() && u.trained(); ++i) {
      const UnitSegment& s = u.segments[i];
      const int64_t elements = part_ == Part::segment ? s.elements() : s.shard_elements();
      for (size_t node = 0; node < buffers_; ++node) {
        arena.add(sums_[static_cast<size_t>(unit)][i][node], MemoryCategory::gradients,
                  fmt::format("gradient sum {} of {}", node, u.name_of(s)), DType::f32, {elements}, scope);
      }
    }
  }
}

void TreeSums::begin_step(int64_t groups, int64_t first) {
  groups_ = groups;
  first_ = first;
}

void TreeSums::add(int unit, size_t segment, std::span<const GroupRange> groups, std::span<const Tensor> gradients,
                   Stream& stream) {
  if (groups.empty()) return;
  fold_.start(groups_);
  inputs_.clear();
  each_node({first_, groups.front().first}, groups_, [&](const GroupRange& node) {
    inputs_.push_back(sum(unit, segment, inputs_.size()));
    fold_.push(node);
  });
  const size_t before = inputs_.size();
  inputs_.insert(inputs_.end(), gradients.begin(), gradients.end());
  for (const GroupRange& node : groups) fold_.push(node);
  LLMTRAIN_CHECK(fold_.sums().size() <= buffers_, "more sums of a tree remain than were planned");
  for (size_t i = 0; i < fold_.sums().size(); ++i) {
    const TreeFold::Sum& node = fold_.sums()[i];
    if (node.end <= before) continue;  // nothing was added to it
    const std::span<const Tensor> in = std::span<const Tensor>(inputs_).subspan(node.begin, node.end - node.begin);
    add_tree(sum(unit, segment, i), in, fold_.additions(node), stream);
  }
}

uint64_t TreeSums::key(int64_t group) const {
  const auto before = static_cast<uint64_t>(node_count({first_, group}, groups_));
  const auto after = static_cast<uint64_t>(node_count({first_, group + 1}, groups_));
  return before << 8 | after;
}

}  // namespace llmtrain
