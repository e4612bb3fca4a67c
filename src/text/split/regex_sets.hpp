#pragma once
// Sets of characters that have a name in Oniguruma's syntax, as PCRE2 takes them.

#include <string>
#include <string_view>

#include "text/unicode/code_point_set.hpp"

namespace llmtrain {

/// A named set for use within brackets: PCRE2's own property, which is fast, and what it lacks of it.
struct KnownSet {
  CodePointSet set;
  std::string text;
};
/// The set of that name, made once; null where no set has it.
const KnownSet* known_set(std::string_view name);
/// The set's ranges, for use within brackets.
std::string text_of(const CodePointSet& set);

}  // namespace llmtrain
