#pragma once
// Finds many texts in a long one at once, in time linear in it whatever the texts are.

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

  /// `literal` is not empty; the last value of equal ones counts.
  void add(std::string_view literal, int32_t value);
  /// After the last add().
  void finish();
  bool empty() const { return nodes_.size() == 1; }

  /// From left to right, each match the longest at its place and beginning after the one before. Replaces `matches`.
  void find(std::string_view text, std::vector<Match>& matches) const;
  /// The longest match at every place where there is one, also where they overlap.
  void find_all(std::string_view text, std::vector<Match>& matches) const;

 private:
  // An automaton (Aho, Corasick 1975) of the literals read backwards: walking the text from its end it knows at every
  // byte the longest literal that begins there.
  struct Node {
    uint32_t fallback = 0;  // the longest proper ending of its path that is a path
    uint32_t longest = 0;   // node of the longest literal that its path ends with, itself or shorter; 0 = none
    uint32_t length = 0;    // of its path
    int32_t value = -1;     // of the literal that is its path
  };
  uint32_t child(uint32_t node, uint8_t byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<std::pair<uint32_t, uint8_t>> parents_ = {{0, 0}};  // of each node: parent and byte
  std::unordered_map<uint64_t, uint32_t> children_;
  std::array<uint32_t, 256> roots_{};  // children of the root
};

}  // namespace llmtrain
