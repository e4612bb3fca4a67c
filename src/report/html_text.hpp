#pragma once
// Foreign text in pages: everything that a page has from files of a run goes through these functions.

#include <string>
#include <string_view>

namespace llmtrain {

/// Replaces bytes that are not UTF-8, and control characters but tabs and new lines, by U+FFFD.
std::string clean_text(std::string_view text);

/// Text for an element or a quoted attribute.
std::string html_text(std::string_view text);

/// A JSON string, in quotes, that may stand in a <script>: it is ASCII and has no `<`.
std::string json_string(std::string_view text);

/// JSON's form of a number with six significant digits; null if it is not finite.
std::string json_number(double value);

}  // namespace llmtrain
