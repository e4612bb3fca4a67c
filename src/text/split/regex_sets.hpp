#pragma once
// Named sets of characters of Oniguruma's syntax in the form that PCRE2 accepts.

#include <string>
#include <string_view>

#include "text/unicode/code_point_set.hpp"

namespace llmtrain {

/// A named set for use within brackets: PCRE2's own property, which is fast, and the characters that it lacks.
struct KnownSet {
  CodePointSet set;
  std::string text;
};
/// Returns the set of that name, made once; null if no set has it.
const KnownSet* known_set(std::string_view name);
/// Returns the set's ranges for use within brackets.
std::string text_of(const CodePointSet& set);

}  // namespace llmtrain
