#pragma once
// Values as text: str(), repr() and json.dumps of Python.

#include <string>

#include "text/chat/jinja/evaluator.hpp"
#include "text/chat/jinja/value.hpp"

namespace llmtrain::jinja {

/// Returns str(value); of Undefined nothing.
MarkedText to_text(Evaluator& evaluator, const Value& value);
std::string float_text(double value);       ///< repr() of a float
std::string quoted(std::string_view text);  ///< repr() of a str

struct JsonOptions {
  bool ascii = false;
  bool sort_keys = false;
  bool is_indented = false;
  MarkedText indent;  ///< of one level
  std::string item_separator = ", ", key_separator = ": ";
};
MarkedText to_json(Evaluator& evaluator, const Value& value, const JsonOptions& options);

}  // namespace llmtrain::jinja
