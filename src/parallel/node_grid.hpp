#pragma once
#include <algorithm>
#include <cstdint>

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

}  // namespace llmtrain
