// Evaluation of expressions.

#include <fmt/format.h>

#include "text/chat/jinja/ast.hpp"
#include "text/chat/jinja/evaluator.hpp"
#include "text/chat/jinja/filters.hpp"
#include "text/chat/jinja/operators.hpp"
#include "text/chat/jinja/printing.hpp"

namespace llmtrain::jinja {

Value Name::evaluate(Evaluator& evaluator) const { return evaluator.find(name); }

Value SequenceLiteral::evaluate(Evaluator& evaluator) const {
  std::vector<Value> values;
  values.reserve(items.size());
  for (const Expression* item : items) values.push_back(evaluator.evaluate(*item));
  return evaluator.list(std::move(values), is_tuple ? SequenceKind::tuple : SequenceKind::list);
}

Value DictLiteral::evaluate(Evaluator& evaluator) const {
  std::vector<std::pair<Value, Value>> values;
  values.reserve(entries.size());
  for (const auto& [key, value] : entries) {
    Value evaluated = evaluator.evaluate(*key);
    values.emplace_back(std::move(evaluated), evaluator.evaluate(*value));
  }
  return evaluator.dict(std::move(values));
}

Value Unary::evaluate(Evaluator& evaluator) const {
  const Value value = evaluator.evaluate(*operand);
  if (symbol == '!') return !value.truth();
  if (symbol == '-') return negate(evaluator, value);
  return add(evaluator, Value(int64_t{0}), value);
}

Value Binary::evaluate(Evaluator& evaluator) const {
  const Value first = evaluator.evaluate(*left);
  return function(evaluator, first, evaluator.evaluate(*right));
}

Value Logic::evaluate(Evaluator& evaluator) const {
  Value first = evaluator.evaluate(*left);
  return first.truth() == is_and ? evaluator.evaluate(*right) : first;
}

Value Concatenation::evaluate(Evaluator& evaluator) const {
  MarkedText text;
  for (const Expression* part : parts) {
    text.append(to_text(evaluator, evaluator.evaluate(*part)));
    evaluator.check_text(text.size());
  }
  return evaluator.text(std::move(text));
}

Value Comparisons::evaluate(Evaluator& evaluator) const {
  Value left = evaluator.evaluate(*first);
  for (const auto& [compare, operand] : rest) {
    Value right = evaluator.evaluate(*operand);
    if (!compare(evaluator, left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Conditional::evaluate(Evaluator& evaluator) const {
  if (evaluator.evaluate(*test).truth()) return evaluator.evaluate(*then);
  if (otherwise != nullptr) return evaluator.evaluate(*otherwise);
  return Value::undefined("the inline if-expression evaluated to false and no else section was defined");
}

Value Attribute::evaluate(Evaluator& evaluator) const { return evaluator.attribute(evaluator.evaluate(*object), name); }

Value Item::evaluate(Evaluator& evaluator) const {
  const Value from = evaluator.evaluate(*object);
  return evaluator.item(from, evaluator.evaluate(*key));
}

Value Slice::evaluate(Evaluator& evaluator) const {
  const Value from = evaluator.evaluate(*object);
  Value bounds[3];
  const Value* given[3] = {nullptr, nullptr, nullptr};
  const Expression* const expressions[3] = {start, stop, step};
  for (size_t i = 0; i < 3; ++i) {
    if (expressions[i] == nullptr) continue;
    bounds[i] = evaluator.evaluate(*expressions[i]);
    given[i] = &bounds[i];
  }
  return slice(evaluator, from, given[0], given[1], given[2]);
}

Value Call::evaluate(Evaluator& evaluator) const {
  const Value function = evaluator.evaluate(*callee);
  return evaluator.call(function, evaluator.arguments(arguments));
}

Value Filtered::evaluate(Evaluator& evaluator) const {
  if (filter == nullptr) evaluator.fail(fmt::format("no filter is named '{}'", name));
  const Value value = input == nullptr ? evaluator.take_captured() : evaluator.evaluate(*input);
  return filter->run(evaluator, value, evaluator.arguments(arguments));
}

Value Tested::evaluate(Evaluator& evaluator) const {
  if (test == nullptr) evaluator.fail(fmt::format("no test is named '{}'", name));
  const Value value = evaluator.evaluate(*input);
  return test->run(evaluator, value, evaluator.arguments(arguments));
}

}  // namespace llmtrain::jinja
