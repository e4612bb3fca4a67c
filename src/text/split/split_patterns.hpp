#pragma once
// Kinds of split patterns; known_patterns.cpp lists the patterns.

#include <cstdint>
#include <memory>
#include <string_view>

#include "text/split/pretokenize.hpp"

namespace llmtrain {

/// 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
std::unique_ptr<SplitPattern> make_gpt2_split(std::string_view name, std::string_view regex);

/// Patterns that follow cl100k: a word can begin with one character that is neither letter, number nor line end,
/// numbers are split, line ends belong to the symbols before them.
struct WordSplit {
  enum class Letters : uint8_t {
    plain,       ///< \p{L}+
    with_marks,  ///< [\p{L}\p{M}]+, and marks are not symbols
    cased,       ///< [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+ or the same with + and *
  };
  enum class Contractions : uint8_t { none, first, after_word };

  Letters letters = Letters::plain;
  Contractions contractions = Contractions::first;
  Fold fold = Fold::unicode;
  size_t max_digits = 3;       ///< per number
  bool slash_in_tail = false;  ///< [\r\n/]* after symbols instead of [\r\n]*
};
std::unique_ptr<SplitPattern> make_word_split(std::string_view name, std::string_view regex, const WordSplit& how);

/// DeepSeek V3's third pattern: [!"#...~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|
/// ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+| ...
std::unique_ptr<SplitPattern> make_deepseek_split(std::string_view name, std::string_view regex);

/// A run of characters of one class, between `least` and `most` of them, with an optional first character from
/// `before`.
struct RunSplit {
  uint16_t classes = 0;        ///< char_class, together with
  std::string_view list = {};  ///< characters and ranges as in a bracket, a-z
  uint16_t before = 0;
  size_t least = 1;
  size_t most = SplitScanner::no_limit;
};
std::unique_ptr<SplitPattern> make_run_split(std::string_view name, std::string_view regex, const RunSplit& how);

/// \s+$, where $ is the end of a line as in Oniguruma.
std::unique_ptr<SplitPattern> make_trailing_space_split(std::string_view name, std::string_view regex);

}  // namespace llmtrain
