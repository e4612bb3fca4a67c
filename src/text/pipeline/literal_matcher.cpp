#include "text/pipeline/literal_matcher.hpp"

#include <algorithm>
#include <numeric>

#include "core/error.hpp"

namespace llmtrain {

uint32_t LiteralMatcher::child(uint32_t node, uint8_t byte) const {
  if (node == 0) return roots_[byte];
  const auto found = children_.find(uint64_t{node} << 8 | byte);
  return found == children_.end() ? 0 : found->second;
}

void LiteralMatcher::add(std::string_view literal, int32_t value) {
  LLMTRAIN_CHECK(!literal.empty(), "a literal has at least one byte");
  uint32_t node = 0;
  for (size_t i = literal.size(); i-- > 0;) {
    const auto byte = static_cast<uint8_t>(literal[i]);
    uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<uint32_t>(nodes_.size());
      nodes_.push_back({0, 0, nodes_[node].length + 1, -1});
      parents_.emplace_back(node, byte);
      if (node == 0) {
        roots_[byte] = next;
      } else {
        children_[uint64_t{node} << 8 | byte] = next;
      }
    }
    node = next;
  }
  nodes_[node].value = value;
}

void LiteralMatcher::finish() {
  std::vector<uint32_t> order(nodes_.size() - 1);  // shorter paths first
  std::iota(order.begin(), order.end(), 1);
  std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return nodes_[a].length < nodes_[b].length; });
  for (const uint32_t index : order) {
    Node& node = nodes_[index];
    const auto [parent, byte] = parents_[index];
    if (parent != 0) {
      uint32_t from = nodes_[parent].fallback;
      while (from != 0 && child(from, byte) == 0) from = nodes_[from].fallback;
      node.fallback = child(from, byte);
    }
    node.longest = node.value >= 0 ? index : nodes_[node.fallback].longest;
  }
}

void LiteralMatcher::find_all(std::string_view text, std::vector<Match>& matches) const {
  matches.clear();
  uint32_t node = 0;
  for (size_t i = text.size(); i-- > 0;) {
    const auto byte = static_cast<uint8_t>(text[i]);
    uint32_t next = child(node, byte);
    while (next == 0 && node != 0) {
      node = nodes_[node].fallback;
      next = child(node, byte);
    }
    node = next;
    const uint32_t longest = nodes_[node].longest;
    if (longest != 0) matches.push_back({i, i + nodes_[longest].length, nodes_[longest].value});
  }
  std::ranges::reverse(matches);
}

void LiteralMatcher::find(std::string_view text, std::vector<Match>& matches) const {
  find_all(text, matches);
  size_t free = 0;
  std::erase_if(matches, [&](const Match& match) {
    if (match.begin < free) return true;
    free = match.end;
    return false;
  });
}

}  // namespace llmtrain
