#pragma once
// Formatting of Python: "%s" % value and "{}".format(value).

#include <cstdint>

#include "text/chat/jinja/evaluator.hpp"
#include "text/chat/jinja/value.hpp"

namespace llmtrain::jinja {

inline constexpr int64_t max_format_width = 1000;

Value format_percent(Evaluator& evaluator, const MarkedText& format, const Value& values);
Value format_braces(Evaluator& evaluator, const MarkedText& format, const Arguments& arguments);
/// The character of a number, as chr() gives it.
MarkedText character_with(Evaluator& evaluator, const Value& number);

}  // namespace llmtrain::jinja
