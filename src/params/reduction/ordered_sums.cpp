#include "params/reduction/ordered_sums.hpp"

#include "kernels/elementwise.hpp"

namespace llmtrain {

OrderedSums::OrderedSums(const UnitStates& units) : units_(units) {
  for (const UnitState& u : units) sums_.emplace_back(u.segments.size());
}

/// True if some block after the first has several groups.
bool OrderedSums::has_block_sums() const {
  for (int64_t g = 1; g < max_groups_; ++g) {
    if (block_of(g) > 0 && block_of(g) == block_of(g - 1)) return true;
  }
  return false;
}

void OrderedSums::plan(Arena& arena) {
  const bool blocks = has_block_sums();
  for (int unit = 0; unit < units_.size(); ++unit) {
    const UnitState& u = units_[unit];
    for (size_t i = 0; i < u.segments.size() && u.trained(); ++i) {
      const UnitSegment& s = u.segments[i];
      Sum& sum = sums_[static_cast<size_t>(unit)][i];
      arena.add(sum.total, MemoryCategory::gradients, "gradient sum of " + u.name_of(s), DType::f32,
                {s.shard_elements()});
      if (!blocks) continue;
      arena.add(sum.block, MemoryCategory::gradients, "block sum of " + u.name_of(s), DType::f32, {s.shard_elements()});
    }
  }
}

void OrderedSums::add(int unit, size_t segment, std::span<const GroupRange> groups, std::span<const Tensor> gradients,
                      Stream& stream) {
  const Sum& sum = at(unit, segment);
  int64_t group = groups.front().first;
  while (!gradients.empty()) {
    const int64_t block = block_of(group);
    size_t count = 1;
    while (count < gradients.size() && block_of(group + static_cast<int64_t>(count)) == block) ++count;
    const std::span<const Tensor> of_block = gradients.first(count);
    const Target target = target_of(group, static_cast<int64_t>(count));
    if (target.to_total) {
      add_in_order(sum.total, of_block, group == 0, stream);
    } else {
      add_in_order(sum.block, of_block, target.begins, stream);
      if (target.ends) add_into(sum.total, sum.block, false, stream);
    }
    gradients = gradients.subspan(count);
    group += static_cast<int64_t>(count);
  }
}

OrderedSums::Target OrderedSums::target_of(int64_t group, int64_t count) const {
  const int64_t block = block_of(group), next = group + count;
  const bool begins = group == 0 || block_of(group - 1) != block;
  const bool ends = next == groups_ || block_of(next) != block;
  return {block == 0 || (begins && ends && count == 1), begins, ends};
}

uint64_t OrderedSums::key(int64_t group) const {
  const Target target = target_of(group, 1);
  return (group == 0 ? 1u : 0u) | (target.to_total ? 2u : 0u) | (target.begins ? 4u : 0u) | (target.ends ? 8u : 0u);
}

}  // namespace llmtrain
