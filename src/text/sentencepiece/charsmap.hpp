#pragma once
// SentencePiece's precompiled rules: a double-array trie (Darts) from byte sequences to replacements. The file is
// untrusted: every index that the trie leads to is checked when it is read.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain {

class Charsmap {
 public:
  /// Reads the uint32 size of the trie in bytes, the trie, and the replacements, each ended by a NUL. Throws
  /// UserError(bad_content) "name: ...".
  Charsmap(std::string_view blob, const std::string& name);

  struct Match {
    size_t length = 0;  ///< 0 = no match
    std::string_view replacement;
  };
  /// Returns the longest (or shortest) rule that is a prefix of `text`.
  Match longest(std::string_view text) const { return find(text, true); }
  Match shortest(std::string_view text) const { return find(text, false); }

 private:
  Match find(std::string_view text, bool longest) const;
  void check(const std::string& name) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace llmtrain
