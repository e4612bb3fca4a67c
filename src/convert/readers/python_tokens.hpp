#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "convert/settings.hpp"

namespace llmtrain {

/// A token of Python: a word (name or keyword), a number, a text (its value), a symbol, or the end of a statement.
struct PythonToken {
  enum class Kind : uint8_t { word, number, text, symbol, newline, end };
  Kind kind;
  std::string text;
  int line;
  bool is(std::string_view symbol) const { return kind == Kind::symbol && text == symbol; }
};

/// Splits the text into tokens; the last one is the end. Formatted and byte texts, indented statements and unknown
/// characters are errors of the builder.
std::vector<PythonToken> read_python_tokens(std::string_view text, const SettingsBuilder& builder);

}  // namespace llmtrain
