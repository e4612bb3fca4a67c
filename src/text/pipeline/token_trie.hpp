#pragma once
// Prefix tree of tokens.

#include <cstdint>
#include <string_view>
#include <vector>

namespace llmtrain {

class TokenTrie {
 public:
  /// Adds a token; the last value of equal ones counts.
  void add(std::string_view token, int32_t value) {
    uint32_t node = 0;
    for (const char c : token) {
      const uint64_t key = key_of(node, static_cast<uint8_t>(c));
      size_t slot = slot_of(key);
      if (edges_[slot].child == 0) {
        if (values_.size() * 2 >= edges_.size()) {
          grow();
          slot = slot_of(key);
        }
        edges_[slot] = {key, static_cast<uint32_t>(values_.size())};
        values_.push_back(-1);
      }
      node = edges_[slot].child;
    }
    values_[node] = value;
  }

  /// Calls use(length, value) for every token that is a prefix of `text`, shorter ones first.
  template <class Use>
  void prefixes(std::string_view text, const Use& use) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<uint8_t>(text[i]));
      if (node == 0) return;
      if (values_[node] >= 0) use(i + 1, values_[node]);
    }
  }

 private:
  // Edges in one open hash table: parent and byte -> child. The root is never a child: 0 is an empty slot.
  struct Edge {
    uint64_t key = 0;  // (parent + 1) << 8 | byte
    uint32_t child = 0;
  };
  uint32_t child(uint32_t node, uint8_t byte) const { return edges_[slot_of(key_of(node, byte))].child; }
  static uint64_t key_of(uint32_t node, uint8_t byte) { return (uint64_t{node} + 1) << 8 | byte; }
  size_t slot_of(uint64_t key) const {
    const size_t mask = edges_.size() - 1;
    size_t slot = static_cast<size_t>((key * 0x9E3779B97F4A7C15u) >> 32) & mask;
    while (edges_[slot].child != 0 && edges_[slot].key != key) slot = (slot + 1) & mask;
    return slot;
  }
  void grow() {
    std::vector<Edge> old(edges_.size() * 2);
    old.swap(edges_);
    for (const Edge& edge : old) {
      if (edge.child != 0) edges_[slot_of(edge.key)] = edge;
    }
  }

  std::vector<Edge> edges_ = std::vector<Edge>(64);
  std::vector<int32_t> values_ = {-1};  // value by node
};

}  // namespace llmtrain
