#pragma once
// Added tokens: the text is searched for them before any other step.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/pipeline/literal_matcher.hpp"
#include "text/pipeline/normalizer.hpp"

namespace llmtrain {

struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool single_word = false;  ///< matches only at word boundaries
  bool lstrip = false;       ///< also matches the white space before it
  bool rstrip = false;       ///< also matches the white space after it
  bool normalized = false;   ///< matches in the normalized text, and is normalized itself
  bool special = false;      ///< decode omits it
  bool is_split = false;     ///< found in a text, it is not a token there, and neither is another that it overlaps
  bool in_text = true;       ///< false: a name only, which no text produces
  std::string found = {};    ///< normalized form to search for
};

/// Returns true if one of the ranges, which are in order and apart, contains [begin, end).
bool lies_in(std::span<const TextRange> ranges, size_t begin, size_t end);

class AddedTokens {
 public:
  AddedTokens() = default;
  /// Adds `tokens` in order; of equal contents the last counts. Normalizes those that are marked so.
  AddedTokens(std::vector<AddedToken> tokens, const std::vector<std::unique_ptr<Normalizer>>& normalizers);

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  bool any(bool normalized) const { return !(normalized ? normalized_ : plain_).empty(); }

  /// Splits the text into tokens and the text between them (token < 0), in order.
  struct Segment {
    size_t begin, end;
    int32_t token;
  };
  /// Returns true for a token at these bytes of the text that is to be text.
  using IsText = std::function<bool(const AddedToken& token, size_t begin, size_t end)>;
  void split(std::string_view text, bool normalized, std::vector<Segment>& segments,
             const IsText* is_text = nullptr) const;

  /// Returns false if a token could extend over a cut between a letter or digit and a space, or, when `prefixed` (a
  /// prefix is put before the text after a token, but not before the text after a cut), end at one.
  bool is_segmentable(bool prefixed) const;

 private:
  std::vector<AddedToken> tokens_;
  LiteralMatcher plain_, normalized_;  // values: indices into tokens_
};

}  // namespace llmtrain
