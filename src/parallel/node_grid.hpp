#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace llmtrain {

/// Ranks that are numbered node by node: every node but the last has `per_node` of them.
struct NodeGrid {
  int64_t ranks = 1;
  int64_t per_node = 1;

  int64_t nodes() const { return (ranks + per_node - 1) / per_node; }
  int64_t node_of(int64_t rank) const { return rank / per_node; }
  int64_t first_rank(int64_t node) const { return node * per_node; }
  int64_t size_of(int64_t node) const { return std::min(per_node, ranks - first_rank(node)); }
  /// True if several nodes have several ranks each, so that some of what travels between nodes is for a whole node.
  bool has_levels() const { return per_node > 1 && per_node < ranks; }
  /// The rank of `node` that speaks with a rank of another node: that of the same place; a smaller node has fewer.
  int64_t speaker(int64_t node, int64_t rank) const {
    return first_rank(node) + (rank - first_rank(node_of(rank))) % size_of(node);
  }
};

/// Returns NodeGrid::per_node of ranks whose nodes these are; 0 if they are not numbered node by node.
inline int consecutive_ranks_per_node(std::span<const int> nodes) {
  if (nodes.empty()) return 0;
  size_t per_node = 1;
  while (per_node < nodes.size() && nodes[per_node] == nodes[0]) ++per_node;
  for (size_t rank = 0; rank < nodes.size(); ++rank) {
    if (nodes[rank] != static_cast<int>(rank / per_node)) return 0;
  }
  return static_cast<int>(per_node);
}

}  // namespace llmtrain
