#pragma once
// Regular expressions of Python's re module, as adapter_config.json and the deck have them for names of modules. Their
// syntax is translated to that of Regex; the rest is refused by name, so that no name is matched differently than by
// Python.

#include <cstddef>
#include <optional>
#include <string_view>

#include "text/split/regex.hpp"

namespace llmtrain {

class PythonRegex {
 public:
  /// Throws UserError(bad_content), whose message begins with the pattern, or with `shown` if that is what the user
  /// gave.
  explicit PythonRegex(std::string_view pattern) : PythonRegex(pattern, pattern) {}
  PythonRegex(std::string_view pattern, std::string_view shown);

  /// re.fullmatch, for texts without line breaks. Throws UserError(bad_content) if the pattern takes too long.
  bool matches(std::string_view text) const;
  /// Returns the end of the match of re.match, which begins with the text.
  std::optional<size_t> match_end(std::string_view text) const;

 private:
  Regex whole_, begin_;
};

}  // namespace llmtrain
