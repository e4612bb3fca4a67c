#pragma once
// Methods of Python's str, dict, list and tuple, without those that change their object.

#include <optional>
#include <string_view>

#include "text/chat/jinja/evaluator.hpp"
#include "text/chat/jinja/value.hpp"

namespace llmtrain::jinja {

/// Returns a method bound to its object. A method that would change the object fails.
std::optional<Value> find_method(Evaluator& evaluator, const Value& object, std::string_view name);

struct MethodEntry {
  std::string_view name;
  Value (*run)(Evaluator& evaluator, const Value& object, const Arguments& arguments);
};
/// Null if there is none of this name; one that is not supported fails.
const MethodEntry* find_text_method(Evaluator& evaluator, std::string_view name);

}  // namespace llmtrain::jinja
