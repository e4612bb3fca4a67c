#pragma once
// Filters and tests of Jinja, by name.

#include <string_view>

#include "text/chat/jinja/evaluator.hpp"
#include "text/chat/jinja/value.hpp"

namespace llmtrain::jinja {

struct FilterEntry {
  std::string_view name;
  Value (*run)(Evaluator& evaluator, const Value& input, const Arguments& arguments);
};
struct TestEntry {
  std::string_view name;
  bool (*run)(Evaluator& evaluator, const Value& input, const Arguments& arguments);
};

/// Null if there is none of this name.
const FilterEntry* find_filter(std::string_view name);
const FilterEntry* find_text_filter(std::string_view name);      ///< filters of single values
const FilterEntry* find_sequence_filter(std::string_view name);  ///< filters of lists and dicts
const TestEntry* find_test(std::string_view name);

}  // namespace llmtrain::jinja
