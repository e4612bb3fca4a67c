#include "text/chat/jinja/operators.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "text/chat/jinja/python_text.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain::jinja {
namespace {

[[noreturn]] void fail_operands(Evaluator& evaluator, std::string_view symbol, const Value& left, const Value& right) {
  evaluator.require_defined(left);
  evaluator.require_defined(right);
  evaluator.fail(
      fmt::format("the operands of {} cannot be a {} and a {}", symbol, left.type_name(), right.type_name()));
}

[[noreturn]] void fail_overflow(Evaluator& evaluator) { evaluator.fail("an integer does not fit 64 bits"); }

void refuse_big(Evaluator& evaluator, const Value& left, const Value& right) {
  if (left.as_big() != nullptr || right.as_big() != nullptr) {
    evaluator.fail("arithmetic with an integer beyond 64 bits is not supported: it can be written and compared");
  }
}

/// Compares numbers of which one is an integer beyond 64 bits, exactly as Python does: -1, 0 or 1.
int order_of_big(const Value& left, const Value& right) {
  if (left.as_big() == nullptr) return -order_of_big(right, left);
  const BigInteger& big = *left.as_big();
  if (right.as_big() != nullptr) return compare(big, *right.as_big());
  const double other = *right.number();
  if (right.integer() || std::abs(other) < 0x1p63) return big.is_negative() ? -1 : 1;
  if (std::isinf(other)) return other > 0 ? -1 : 1;
  return compare(big, digits_of(other));
}

/// The arithmetic of one operator.
struct Arithmetic {
  std::string_view symbol;
  bool (*of_integers)(int64_t, int64_t, int64_t*);  ///< returns true if the result does not fit
  double (*of_floats)(double, double);
};

Value calculate(Evaluator& evaluator, const Arithmetic& arithmetic, const Value& left, const Value& right) {
  const std::optional<int64_t> a = left.integer(), b = right.integer();
  if (a && b) {
    int64_t result = 0;
    if (arithmetic.of_integers(*a, *b, &result)) fail_overflow(evaluator);
    return result;
  }
  const std::optional<double> x = left.number(), y = right.number();
  if (!x || !y) fail_operands(evaluator, arithmetic.symbol, left, right);
  refuse_big(evaluator, left, right);
  return arithmetic.of_floats(*x, *y);
}

void require_divisor(Evaluator& evaluator, const Value& right) {
  if (right.number() == 0.0) evaluator.fail("division by zero");
}

Value repeated(Evaluator& evaluator, const Value& value, int64_t times) {
  times = std::max<int64_t>(times, 0);
  const auto fits = [&](size_t size) {
    const bool small = size == 0 || times <= (int64_t{1} << 40) / static_cast<int64_t>(size);
    evaluator.check_text(small ? size * static_cast<size_t>(times) : SIZE_MAX);
    evaluator.charge(static_cast<int64_t>(size) * times / 32);
  };
  if (const MarkedText* text = value.as_text()) {
    fits(text->size());
    MarkedText result;
    if (text->size() == 0) times = 0;
    for (int64_t i = 0; i < times; ++i) result.append(*text);
    return evaluator.text(std::move(result));
  }
  const Sequence& items = *value.as_sequence();
  fits(items.items.size() * 32);
  std::vector<Value> result;
  if (items.items.empty()) times = 0;
  for (int64_t i = 0; i < times; ++i) result.insert(result.end(), items.items.begin(), items.items.end());
  return evaluator.list(std::move(result), items.kind);
}

bool is_list_or_tuple(const Value& value) {
  return value.as_sequence() != nullptr && value.as_sequence()->kind <= SequenceKind::tuple;
}
bool can_repeat(const Value& value) { return value.as_text() != nullptr || is_list_or_tuple(value); }

bool same_items(Evaluator& evaluator, const std::vector<Value>& left, const std::vector<Value>& right) {
  if (left.size() != right.size()) return false;
  for (size_t i = 0; i < left.size(); ++i) {
    if (!is_equal(evaluator, left[i], right[i])) return false;
  }
  return true;
}

bool same_entries(Evaluator& evaluator, const Dict& left, const Dict& right) {
  if (left.entries.size() != right.entries.size()) return false;
  for (const auto& [key, value] : left.entries) {
    evaluator.charge(static_cast<int64_t>(right.entries.size() / 16));
    const auto found = std::ranges::find_if(
        right.entries, [&, &key = key](const auto& entry) { return is_equal(evaluator, entry.first, key); });
    if (found == right.entries.end() || !is_equal(evaluator, found->second, value)) return false;
  }
  return true;
}

bool is_nan(const Value& value) { return value.as_float() != nullptr && std::isnan(*value.as_float()); }

/// Returns -1, 0 or 1; fails for values without an order. NaN compares as equal to all, which callers do not mind.
int order(Evaluator& evaluator, std::string_view symbol, const Value& left, const Value& right) {
  evaluator.charge(1);
  if (left.integer() && right.integer())
    return *left.integer() < *right.integer() ? -1 : *left.integer() > *right.integer();
  if (left.number() && right.number()) {
    if ((left.as_big() != nullptr || right.as_big() != nullptr) && !is_nan(left) && !is_nan(right))
      return order_of_big(left, right);
    return *left.number() < *right.number() ? -1 : *left.number() > *right.number();
  }
  if (left.as_text() != nullptr && right.as_text() != nullptr) {
    evaluator.charge(static_cast<int64_t>(std::min(left.as_text()->size(), right.as_text()->size()) / 32));
    const int sign = left.as_text()->bytes().compare(right.as_text()->bytes());
    return sign < 0 ? -1 : sign > 0;
  }
  if (is_list_or_tuple(left) && is_list_or_tuple(right) && left.as_sequence()->kind == right.as_sequence()->kind) {
    const std::vector<Value>&a = left.as_sequence()->items, &b = right.as_sequence()->items;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (!is_equal(evaluator, a[i], b[i])) return order(evaluator, symbol, a[i], b[i]);
    }
    return a.size() < b.size() ? -1 : a.size() > b.size();
  }
  fail_operands(evaluator, symbol, left, right);
}

}  // namespace

Value add(Evaluator& evaluator, const Value& left, const Value& right) {
  if (left.as_text() != nullptr && right.as_text() != nullptr) {
    evaluator.check_text(left.as_text()->size() + right.as_text()->size());
    MarkedText text = *left.as_text();
    text.append(*right.as_text());
    return evaluator.text(std::move(text));
  }
  if (is_list_or_tuple(left) && is_list_or_tuple(right) && left.as_sequence()->kind == right.as_sequence()->kind) {
    std::vector<Value> items = left.as_sequence()->items;
    const std::vector<Value>& more = right.as_sequence()->items;
    items.insert(items.end(), more.begin(), more.end());
    return evaluator.list(std::move(items), left.as_sequence()->kind);
  }
  static constexpr Arithmetic sum{"+", [](int64_t a, int64_t b, int64_t* r) { return __builtin_add_overflow(a, b, r); },
                                  [](double a, double b) { return a + b; }};
  return calculate(evaluator, sum, left, right);
}

Value subtract(Evaluator& evaluator, const Value& left, const Value& right) {
  static constexpr Arithmetic difference{
      "-", [](int64_t a, int64_t b, int64_t* r) { return __builtin_sub_overflow(a, b, r); },
      [](double a, double b) { return a - b; }};
  return calculate(evaluator, difference, left, right);
}

Value multiply(Evaluator& evaluator, const Value& left, const Value& right) {
  if (can_repeat(left) && right.integer()) return repeated(evaluator, left, *right.integer());
  if (can_repeat(right) && left.integer()) return repeated(evaluator, right, *left.integer());
  static constexpr Arithmetic product{"*",
                                      [](int64_t a, int64_t b, int64_t* r) { return __builtin_mul_overflow(a, b, r); },
                                      [](double a, double b) { return a * b; }};
  return calculate(evaluator, product, left, right);
}

Value divide(Evaluator& evaluator, const Value& left, const Value& right) {
  const std::optional<double> a = left.number(), b = right.number();
  if (!a || !b) fail_operands(evaluator, "/", left, right);
  refuse_big(evaluator, left, right);
  require_divisor(evaluator, right);
  return *a / *b;
}

Value floor_divide(Evaluator& evaluator, const Value& left, const Value& right) {
  static constexpr Arithmetic quotient{"//",
                                       [](int64_t a, int64_t b, int64_t* r) {
                                         if (a == INT64_MIN && b == -1) return true;
                                         *r = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
                                         return false;
                                       },
                                       [](double a, double b) { return std::floor(a / b); }};
  if (left.number() && right.number()) require_divisor(evaluator, right);
  return calculate(evaluator, quotient, left, right);
}

Value modulo(Evaluator& evaluator, const Value& left, const Value& right) {
  if (left.as_text() != nullptr) evaluator.fail("the operator % of a str is not supported");
  static constexpr Arithmetic remainder{"%",
                                        [](int64_t a, int64_t b, int64_t* r) {
                                          *r = b == -1 ? 0 : a % b;
                                          if (*r != 0 && (*r < 0) != (b < 0)) *r += b;
                                          return false;
                                        },
                                        [](double a, double b) {
                                          const double r = std::fmod(a, b);
                                          return r != 0 && (r < 0) != (b < 0) ? r + b : r;
                                        }};
  if (left.number() && right.number()) require_divisor(evaluator, right);
  return calculate(evaluator, remainder, left, right);
}

Value power(Evaluator& evaluator, const Value& left, const Value& right) {
  if (right.integer() && *right.integer() < 0 && left.number()) {
    refuse_big(evaluator, left, right);
    if (*left.number() == 0) evaluator.fail("division by zero");
    return std::pow(*left.number(), static_cast<double>(*right.integer()));
  }
  static constexpr Arithmetic powers{"**",
                                     [](int64_t base, int64_t exponent, int64_t* r) {
                                       *r = 1;
                                       if (base == 0 || base == 1) {
                                         *r = exponent == 0 ? 1 : base;
                                         return false;
                                       }
                                       if (base == -1) {
                                         *r = exponent % 2 == 0 ? 1 : -1;
                                         return false;
                                       }
                                       for (int64_t i = 0; i < exponent; ++i) {
                                         if (__builtin_mul_overflow(*r, base, r)) return true;
                                       }
                                       return false;
                                     },
                                     [](double a, double b) { return std::pow(a, b); }};
  return calculate(evaluator, powers, left, right);
}

Value negate(Evaluator& evaluator, const Value& operand) {
  evaluator.require_defined(operand);
  if (const BigInteger* big = operand.as_big()) {
    if (big->digits == digits_of(0x1p63).digits) return INT64_MIN;
    return BigInteger{big->is_negative() ? big->digits.substr(1) : "-" + big->digits};
  }
  if (operand.as_int() != nullptr && *operand.as_int() == INT64_MIN) return digits_of(0x1p63);
  if (operand.number() && !operand.integer()) return -*operand.number();
  if (!operand.integer()) evaluator.fail(fmt::format("a {} cannot be negated", operand.type_name()));
  return subtract(evaluator, Value(int64_t{0}), operand);
}

bool is_equal(Evaluator& evaluator, const Value& left, const Value& right) {
  evaluator.charge(1);
  if (left.integer() && right.integer()) return *left.integer() == *right.integer();
  if (left.number() && right.number()) {
    if (is_nan(left) || is_nan(right)) return false;
    if (left.as_big() != nullptr || right.as_big() != nullptr) return order_of_big(left, right) == 0;
    return *left.number() == *right.number();
  }
  if (left.as_text() != nullptr && right.as_text() != nullptr) {
    evaluator.charge(static_cast<int64_t>(std::min(left.as_text()->size(), right.as_text()->size()) / 32));
    return left.as_text()->bytes() == right.as_text()->bytes();
  }
  if (left.as_sequence() != nullptr && right.as_sequence() != nullptr) {
    const Sequence &a = *left.as_sequence(), &b = *right.as_sequence();
    if (&a == &b) return true;
    return a.kind == b.kind && a.kind != SequenceKind::generator && same_items(evaluator, a.items, b.items);
  }
  if (left.as_dict() != nullptr && right.as_dict() != nullptr) {
    return same_entries(evaluator, *left.as_dict(), *right.as_dict());
  }
  if (left.as_object() != nullptr) return left.as_object() == right.as_object();
  return (left.is_none() && right.is_none()) || (left.is_undefined() && right.is_undefined());
}

bool is_not_equal(Evaluator& evaluator, const Value& left, const Value& right) {
  return !is_equal(evaluator, left, right);
}
bool is_less(Evaluator& evaluator, const Value& left, const Value& right) {
  return order(evaluator, "<", left, right) < 0;
}
bool is_greater(Evaluator& evaluator, const Value& left, const Value& right) {
  return order(evaluator, ">", left, right) > 0;
}
bool is_at_most(Evaluator& evaluator, const Value& left, const Value& right) {
  return order(evaluator, "<=", left, right) <= 0 && !is_nan(left) && !is_nan(right);
}
bool is_at_least(Evaluator& evaluator, const Value& left, const Value& right) {
  return order(evaluator, ">=", left, right) >= 0 && !is_nan(left) && !is_nan(right);
}

bool is_in(Evaluator& evaluator, const Value& left, const Value& right) {
  if (right.is_undefined()) return false;
  if (const MarkedText* text = right.as_text()) {
    if (left.as_text() == nullptr) fail_operands(evaluator, "in", left, right);
    return find_text(evaluator, text->bytes(), left.as_text()->bytes()) != std::string_view::npos;
  }
  if (const Dict* dict = right.as_dict()) {
    evaluator.require_hashable(left);
    evaluator.charge(static_cast<int64_t>(dict->entries.size() / 16));
    return std::ranges::any_of(dict->entries,
                               [&](const auto& entry) { return is_equal(evaluator, entry.first, left); });
  }
  if (right.as_sequence() == nullptr) fail_operands(evaluator, "in", left, right);
  const std::shared_ptr<const Sequence> items = evaluator.items(right);
  return std::ranges::any_of(items->items, [&](const Value& item) { return is_equal(evaluator, item, left); });
}

bool is_not_in_container(Evaluator& evaluator, const Value& left, const Value& right) {
  return !is_in(evaluator, left, right);
}

int64_t length(Evaluator& evaluator, const Value& value) {
  if (value.as_text() != nullptr) {
    evaluator.charge(static_cast<int64_t>(value.as_text()->size() / 32));
    return count_code_points(value.as_text()->bytes());
  }
  if (value.as_dict() != nullptr) return static_cast<int64_t>(value.as_dict()->entries.size());
  const Sequence* items = value.as_sequence();
  if (items != nullptr && items->kind != SequenceKind::generator) return static_cast<int64_t>(items->items.size());
  if (value.is_undefined()) return 0;
  evaluator.fail(fmt::format("a {} has no length", value.type_name()));
}

Value slice(Evaluator& evaluator, const Value& object, const Value* start, const Value* stop, const Value* step) {
  evaluator.require_defined(object);
  const Sequence* items = object.as_sequence();
  const bool is_sliced = object.as_text() != nullptr || (items != nullptr && items->kind < SequenceKind::keys);
  if (!is_sliced) evaluator.fail(fmt::format("a {} cannot be sliced", object.type_name()));
  const auto number = [&](const Value* bound) -> std::optional<int64_t> {
    if (bound == nullptr || bound->is_none()) return std::nullopt;
    if (!bound->integer()) evaluator.fail(fmt::format("a bound of a slice cannot be a {}", bound->type_name()));
    return bound->integer();
  };
  const int64_t by = number(step).value_or(1);
  if (by == 0) evaluator.fail("the step of a slice cannot be 0");
  const int64_t size = length(evaluator, object);  // charges for the whole text, which is read once more below
  const auto place = [&](const Value* bound, int64_t otherwise) {
    const std::optional<int64_t> given = number(bound);
    if (!given) return otherwise;
    const int64_t from_start = *given < 0 ? *given + size : *given;
    return by > 0 ? std::clamp<int64_t>(from_start, 0, size) : std::clamp<int64_t>(from_start, -1, size - 1);
  };
  const int64_t from = place(start, by > 0 ? 0 : size - 1), to = place(stop, by > 0 ? size : -1);
  std::vector<size_t> chosen;
  if (by != 1 || items != nullptr) {
    for (int64_t i = from; by > 0 ? i < to : i > to;) {
      evaluator.charge(1);
      chosen.push_back(static_cast<size_t>(i));
      if (__builtin_add_overflow(i, by, &i)) break;
    }
  }
  if (items != nullptr) {
    std::vector<Value> found;
    for (const size_t i : chosen) found.push_back(items->items[i]);
    return evaluator.list(std::move(found), items->kind);
  }
  const MarkedText& text = *object.as_text();
  const CodePointOffsets offsets(text.bytes());
  if (by == 1) return evaluator.text(from < to ? text.slice(offsets.at(from), offsets.at(to)) : MarkedText());
  MarkedText found;
  for (const size_t i : chosen)
    found.append(text, offsets.at(static_cast<int64_t>(i)), offsets.at(static_cast<int64_t>(i) + 1));
  return evaluator.text(std::move(found));
}

}  // namespace llmtrain::jinja
