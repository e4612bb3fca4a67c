#pragma once
// Operators on values, as Python defines them.

#include "text/chat/jinja/evaluator.hpp"
#include "text/chat/jinja/value.hpp"

namespace llmtrain::jinja {

Value add(Evaluator& evaluator, const Value& left, const Value& right);
Value subtract(Evaluator& evaluator, const Value& left, const Value& right);
Value multiply(Evaluator& evaluator, const Value& left, const Value& right);
Value divide(Evaluator& evaluator, const Value& left, const Value& right);
Value floor_divide(Evaluator& evaluator, const Value& left, const Value& right);
Value modulo(Evaluator& evaluator, const Value& left, const Value& right);
Value power(Evaluator& evaluator, const Value& left, const Value& right);
Value negate(Evaluator& evaluator, const Value& operand);

/// An operator that compares.
using Comparison = bool (*)(Evaluator&, const Value&, const Value&);
bool is_equal(Evaluator& evaluator, const Value& left, const Value& right);
bool is_not_equal(Evaluator& evaluator, const Value& left, const Value& right);
bool is_less(Evaluator& evaluator, const Value& left, const Value& right);
bool is_greater(Evaluator& evaluator, const Value& left, const Value& right);
bool is_at_most(Evaluator& evaluator, const Value& left, const Value& right);
bool is_at_least(Evaluator& evaluator, const Value& left, const Value& right);
/// `left in right`.
bool is_in(Evaluator& evaluator, const Value& left, const Value& right);
bool is_not_in_container(Evaluator& evaluator, const Value& left, const Value& right);

/// Returns object[start:stop:step]; a bound is null where it is left out.
Value slice(Evaluator& evaluator, const Value& object, const Value* start, const Value* stop, const Value* step);
/// Returns the number of elements, as len() does.
int64_t length(Evaluator& evaluator, const Value& value);

}  // namespace llmtrain::jinja
