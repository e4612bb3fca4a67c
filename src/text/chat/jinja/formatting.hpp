#pragma once
// Formatting of Python: "%s" % value and "{}".format(value).

#include "text/chat/jinja/evaluator.hpp"
#include "text/chat/jinja/value.hpp"

namespace llmtrain::jinja {

Value format_percent(Evaluator& evaluator, const MarkedText& format, const Value& values);
Value format_braces(Evaluator& evaluator, const MarkedText& format, const Arguments& arguments);

}  // namespace llmtrain::jinja
