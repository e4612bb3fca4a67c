#pragma once
// Python's view of text: white space, case and code points.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat/jinja/value.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain::jinja {

bool is_python_space(char32_t c);
/// Returns the first position from `at` on that is not white space.
size_t skip_python_spaces(std::string_view text, size_t at);
/// Returns the end of text[begin, end) without the white space at its end.
size_t strip_python_spaces_right(std::string_view text, size_t begin, size_t end);

/// Returns the first place of `wanted` from `from` on, in a time that is linear and charged.
size_t find_text(Evaluator& evaluator, std::string_view text, std::string_view wanted, size_t from = 0);
/// Returns the last place of `wanted`.
size_t find_last_text(Evaluator& evaluator, std::string_view text, std::string_view wanted);

enum class Case : uint8_t { upper, lower, title, capitalized };
std::string with_case(std::string_view text, Case wanted);

bool is_upper(char32_t c);
bool is_lower(char32_t c);
bool is_titlecase(char32_t c);
bool is_cased(char32_t c);  ///< upper, lower or title case
bool is_printable(char32_t c);

/// Byte offsets of code points: found from the start for ASCII, else listed.
class CodePointOffsets {
 public:
  explicit CodePointOffsets(std::string_view text);
  size_t at(int64_t index) const {
    return offsets_.empty() ? static_cast<size_t>(index) : offsets_[static_cast<size_t>(index)];
  }
  /// Returns the number of code points before a byte.
  int64_t index_of(size_t byte) const;

 private:
  std::vector<size_t> offsets_;  // empty for ASCII
};

/// Returns text[index], undefined outside of the text.
Value character_of(Evaluator& evaluator, const MarkedText& text, int64_t index);

}  // namespace llmtrain::jinja
