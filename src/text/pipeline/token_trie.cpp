#include "text/pipeline/token_trie.hpp"

namespace llmtrain {

void TokenTrie::add(std::string_view token, int32_t value) {
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

void TokenTrie::grow() {
  std::vector<Edge> old(edges_.size() * 2);
  old.swap(edges_);
  for (const Edge& edge : old) {
    if (edge.child != 0) edges_[slot_of(edge.key)] = edge;
  }
}

}  // namespace llmtrain
