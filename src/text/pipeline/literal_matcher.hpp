#pragma once
// Searches a text for many literals at once, in time linear in the text.

#include <array>
#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace llmtrain {

class LiteralMatcher {
 public:
  struct Match {
    size_t begin, end;
    int32_t value;
  };

  /// Adds a non-empty `literal`; of equal literals the last value counts.
  void add(std::string_view literal, int32_t value);
  /// Builds the automaton after the last add().
  void finish();
  bool empty() const { return nodes_.size() == 1; }

  /// Finds matches from left to right, each the longest at its position and beginning after the one before. Replaces
  /// `matches`.
  void find(std::string_view text, std::vector<Match>& matches) const;
  /// Finds the longest match at every position that has one, overlapping matches included.
  void find_all(std::string_view text, std::vector<Match>& matches) const;

 private:
  // An automaton (Aho, Corasick 1975) of the reversed literals: reading the text from its end, it knows at every byte
  // the longest literal that begins there.
  struct Node {
    uint32_t fallback = 0;  // node of the longest proper suffix of its path that is a path
    uint32_t longest = 0;   // node of the longest literal that ends its path, itself or shorter; 0 = none
    uint32_t length = 0;    // length of its path
    int32_t value = -1;     // value of the literal that equals its path
  };
  uint32_t child(uint32_t node, uint8_t byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<std::pair<uint32_t, uint8_t>> parents_ = {{0, 0}};  // parent and byte of each node
  std::unordered_map<uint64_t, uint32_t> children_;
  std::array<uint32_t, 256> roots_{};  // children of the root
};

}  // namespace llmtrain
