// Tests of Jinja: `value is name`.

#include "core/find_entry.hpp"
#include "text/chat/jinja/builtins.hpp"
#include "text/chat/jinja/operators.hpp"

namespace llmtrain::jinja {
namespace value_tests {
namespace {

using Args = const Arguments&;

const Value& only_argument(Evaluator& evaluator, Args arguments) {
  if (arguments.positional.size() != 1 || !arguments.named.empty()) evaluator.fail("the test needs one argument");
  return arguments.positional.front();
}

template <Comparison compare>
bool compares(Evaluator& evaluator, const Value& input, Args arguments) {
  return compare(evaluator, input, only_argument(evaluator, arguments));
}

bool is_divisible(Evaluator& evaluator, const Value& input, const Value& by) {
  return modulo(evaluator, input, by).number() == 0.0;
}

bool is_int(const Value& value) { return value.as_int() != nullptr || value.as_big() != nullptr; }

constexpr NamedTest tests[] = {
    {"boolean", [](Evaluator&, const Value& v, Args) { return v.as_bool() != nullptr; }},
    {"defined", [](Evaluator&, const Value& v, Args) { return !v.is_undefined(); }},
    {"divisibleby", [](Evaluator& e, const Value& v, Args a) { return is_divisible(e, v, only_argument(e, a)); }},
    {"eq", compares<is_equal>},
    {"equalto", compares<is_equal>},
    {"==", compares<is_equal>},
    {"even", [](Evaluator& e, const Value& v, Args) { return is_divisible(e, v, Value(int64_t{2})); }},
    {"false", [](Evaluator&, const Value& v, Args) { return v.as_bool() != nullptr && !*v.as_bool(); }},
    {"float", [](Evaluator&, const Value& v, Args) { return v.as_float() != nullptr; }},
    {"ge", compares<is_at_least>},
    {">=", compares<is_at_least>},
    {"gt", compares<is_greater>},
    {"greaterthan", compares<is_greater>},
    {">", compares<is_greater>},
    {"in", compares<is_in>},
    {"integer", [](Evaluator&, const Value& v, Args) { return is_int(v); }},
    {"iterable",
     [](Evaluator&, const Value& v, Args) {
       return v.is_undefined() || v.as_text() != nullptr || v.as_sequence() != nullptr || v.as_dict() != nullptr ||
              (v.as_object() != nullptr && v.as_object()->type_name() == "LoopContext");
     }},
    {"le", compares<is_at_most>},
    {"<=", compares<is_at_most>},
    {"lt", compares<is_less>},
    {"lessthan", compares<is_less>},
    {"<", compares<is_less>},
    {"mapping", [](Evaluator&, const Value& v, Args) { return v.as_dict() != nullptr; }},
    {"ne", compares<is_not_equal>},
    {"!=", compares<is_not_equal>},
    {"none", [](Evaluator&, const Value& v, Args) { return v.is_none(); }},
    {"number", [](Evaluator&, const Value& v, Args) { return v.number().has_value(); }},
    {"odd", [](Evaluator& e, const Value& v, Args) { return modulo(e, v, Value(int64_t{2})).number() == 1.0; }},
    {"sequence",
     [](Evaluator&, const Value& v, Args) {
       const Sequence* items = v.as_sequence();
       return v.is_undefined() || v.as_text() != nullptr || v.as_dict() != nullptr ||
              (items != nullptr && items->kind < SequenceKind::keys);
     }},
    {"string", [](Evaluator&, const Value& v, Args) { return v.as_text() != nullptr; }},
    {"true", [](Evaluator&, const Value& v, Args) { return v.as_bool() != nullptr && *v.as_bool(); }},
    {"undefined", [](Evaluator&, const Value& v, Args) { return v.is_undefined(); }},
};

}  // namespace
}  // namespace value_tests

const NamedTest* find_test(std::string_view name) { return find_entry(value_tests::tests, name, &NamedTest::name); }

}  // namespace llmtrain::jinja
