#pragma once
// Tokens that stand beside the model: found in the text before anything else is done with it.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/pipeline/literal_matcher.hpp"
#include "text/pipeline/normalizer.hpp"

namespace llmtrain {

struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool single_word = false;  ///< only where no word goes on
  bool lstrip = false;       ///< takes the white space before it
  bool rstrip = false;       ///< and after it
  bool normalized = false;   ///< is looked for in the normalized text, itself normalized
  bool special = false;      ///< decode leaves it out
  bool is_split = false;     ///< found in a text, it is no token there, and neither is another that it overlaps
  bool in_text = true;       ///< false: a name only, that text cannot bring about
  std::string found = {};    ///< what is looked for when it is normalized
};

class AddedTokens {
 public:
  AddedTokens() = default;
  /// `tokens` in order; of equal contents the last counts. Normalizes those that want it.
  AddedTokens(std::vector<AddedToken> tokens, const std::vector<std::unique_ptr<Normalizer>>& normalizers);

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  bool any(bool normalized) const { return !(normalized ? normalized_ : plain_).empty(); }

  /// Cuts the chunk into what is between tokens (token < 0) and tokens, in order.
  struct Part {
    size_t begin, end;
    int32_t token;
  };
  void split(std::string_view text, bool normalized, std::vector<Part>& parts) const;

  /// False when a token could reach over a cut between a letter or digit and a space, or, when `prefixed` (something is
  /// put before the text behind a token, but not before the part behind a cut), end at one.
  bool works_on_parts(bool prefixed) const;

 private:
  std::vector<AddedToken> tokens_;
  LiteralMatcher plain_, normalized_;  // values: places in tokens_
};

}  // namespace llmtrain
