#pragma once
// What templates find by name: the functions that all can call, Jinja's filters and tests, and the methods of Python's
// str, dict, list and tuple, without those that change their object.

#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "text/chat/jinja/evaluator.hpp"
#include "text/chat/jinja/value.hpp"

namespace llmtrain::jinja {

/// range, dict, namespace, raise_exception, strftime_now.
std::span<const std::pair<std::string_view, Value>> global_functions();

/// A filter or a method.
struct NamedFunction {
  std::string_view name;
  Value (*run)(Evaluator& evaluator, const Value& input, const Arguments& arguments);
};
struct NamedTest {
  std::string_view name;
  bool (*run)(Evaluator& evaluator, const Value& input, const Arguments& arguments);
};

/// Null if there is none of this name.
const NamedFunction* find_filter(std::string_view name);
const NamedFunction* find_text_filter(std::string_view name);      ///< filters of single values
const NamedFunction* find_sequence_filter(std::string_view name);  ///< filters of lists and dicts
const NamedTest* find_test(std::string_view name);

/// Returns a method bound to its object. A method that would change the object fails.
std::optional<Value> find_method(Evaluator& evaluator, const Value& object, std::string_view name);
/// Null if there is none of this name; one that is not supported fails.
const NamedFunction* find_text_method(Evaluator& evaluator, std::string_view name);

}  // namespace llmtrain::jinja
