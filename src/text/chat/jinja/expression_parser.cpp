#include "text/chat/jinja/expression_parser.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

#include "text/chat/jinja/builtins.hpp"
#include "text/chat/jinja/evaluator.hpp"
#include "text/chat/jinja/operators.hpp"
#include "text/chat/jinja/printing.hpp"

namespace llmtrain::jinja {
namespace {

struct BinaryOperator {
  std::string_view symbol;
  Value (*function)(Evaluator&, const Value&, const Value&);
};
constexpr BinaryOperator sums[] = {{"+", add}, {"-", subtract}};
constexpr BinaryOperator products[] = {{"*", multiply}, {"/", divide}, {"//", floor_divide}, {"%", modulo}};
constexpr BinaryOperator powers[] = {{"**", power}};

constexpr std::pair<std::string_view, Comparison> comparisons[] = {
    {"==", is_equal}, {"!=", is_not_equal}, {"<", is_less}, {">", is_greater}, {"<=", is_at_most}, {">=", is_at_least}};

std::string unsupported(std::string_view kind, std::string_view name) {
  return fmt::format("the {} '{}' is not supported", kind, name);
}

}  // namespace

const Expression* ExpressionParser::make_literal(int line, Value value) {
  return make(line, [value = std::move(value)](Evaluator&) { return value; });
}

const Expression* ExpressionParser::make_not(int line, const Expression* operand) {
  return make(line, [operand](Evaluator& evaluator) { return !evaluator.evaluate(*operand).truth(); });
}

const Expression* ExpressionParser::parse_expression(bool with_condition) {
  const Nesting nesting(*this);
  const Expression* value = parse_or();
  while (with_condition && is_name("if")) {
    const int line = take().line;
    const Expression *then = value, *test = parse_or(), *otherwise = nullptr;
    ++conditions_;
    if (take_name("else")) otherwise = parse_expression();
    --conditions_;
    value = make(line, [test, then, otherwise](Evaluator& evaluator) {
      if (evaluator.evaluate(*test).truth()) return evaluator.evaluate(*then);
      if (otherwise != nullptr) return evaluator.evaluate(*otherwise);
      return Value::undefined("the inline if-expression evaluated to false and no else section was defined");
    });
  }
  return value;
}

const Expression* ExpressionParser::parse_tuple(bool with_condition) {
  const int line = token().line;
  const Expression* first = parse_expression(with_condition);
  if (!is_symbol(",")) return first;
  Expressions items = {first};
  while (take_symbol(",")) {
    const TokenKind kind = token().kind;
    if (kind == TokenKind::block_end || kind == TokenKind::print_end || is_symbol(")") || is_name("in")) break;
    items.push_back(parse_expression(with_condition));
  }
  return make(line,
              [items](Evaluator& evaluator) { return evaluator.list(evaluator.evaluate(items), SequenceKind::tuple); });
}

const Expression* ExpressionParser::parse_or() {
  const Expression* left = parse_and();
  while (is_name("or")) {
    const int line = take().line;
    left = make(line, [left, right = parse_and()](Evaluator& evaluator) {
      Value first = evaluator.evaluate(*left);
      return first.truth() ? first : evaluator.evaluate(*right);
    });
  }
  return left;
}

const Expression* ExpressionParser::parse_and() {
  const Expression* left = parse_not();
  while (is_name("and")) {
    const int line = take().line;
    left = make(line, [left, right = parse_not()](Evaluator& evaluator) {
      Value first = evaluator.evaluate(*left);
      return first.truth() ? evaluator.evaluate(*right) : first;
    });
  }
  return left;
}

const Expression* ExpressionParser::parse_not() {
  if (!is_name("not")) return parse_comparison();
  const Nesting nesting(*this);
  const int line = take().line;
  return make_not(line, parse_not());
}

const Expression* ExpressionParser::parse_comparison() {
  const auto take_comparison = [this]() -> Comparison {
    for (const auto& [symbol, function] : comparisons) {
      if (take_symbol(symbol)) return function;
    }
    if (take_name("in")) return is_in;
    if (!is_name("not") || next().kind != TokenKind::name || next().text != "in") return nullptr;
    take();
    take();
    return is_not_in_container;
  };
  const int line = token().line;
  const Expression* first = parse_sum();
  std::vector<std::pair<Comparison, const Expression*>> rest;
  while (const Comparison compare = take_comparison()) rest.emplace_back(compare, parse_sum());
  if (rest.empty()) return first;
  return make(line, [first, rest](Evaluator& evaluator) {
    Value left = evaluator.evaluate(*first);
    for (const auto& [compare, operand] : rest) {
      Value right = evaluator.evaluate(*operand);
      if (!compare(evaluator, left, right)) return false;
      left = std::move(right);
    }
    return true;
  });
}

template <class Operators, class Operand>
const Expression* ExpressionParser::parse_binary(const Operators& operators, const Operand& operand) {
  const Expression* left = operand();
  for (;;) {
    const auto* const found = std::ranges::find_if(operators, [&](const auto& one) { return is_symbol(one.symbol); });
    if (found == std::end(operators)) return left;
    const int line = take().line;
    left = make(line, [function = found->function, left, right = operand()](Evaluator& evaluator) {
      const Value first = evaluator.evaluate(*left);
      return function(evaluator, first, evaluator.evaluate(*right));
    });
  }
}

const Expression* ExpressionParser::parse_sum() {
  return parse_binary(sums, [this] { return parse_concatenation(); });
}
const Expression* ExpressionParser::parse_product() {
  return parse_binary(products, [this] { return parse_power(); });
}
const Expression* ExpressionParser::parse_power() {
  return parse_binary(powers, [this] { return parse_unary(); });
}

const Expression* ExpressionParser::parse_concatenation() {
  const int line = token().line;
  const Expression* first = parse_product();
  if (!is_symbol("~")) return first;
  Expressions parts = {first};
  while (take_symbol("~")) parts.push_back(parse_product());
  return make(line, [parts](Evaluator& evaluator) {
    MarkedText text;
    for (const Expression* part : parts) {
      text.append(to_text(evaluator, evaluator.evaluate(*part)));
      evaluator.check_text(text.size());
    }
    return evaluator.text(std::move(text));
  });
}

const Expression* ExpressionParser::parse_unary(bool with_filter) {
  const Nesting nesting(*this);
  const Expression* value = nullptr;
  if (is_symbol("-") || is_symbol("+")) {
    const Token sign = take();
    value = make(sign.line, [negates = sign.text == "-", operand = parse_unary(false)](Evaluator& evaluator) {
      const Value number = evaluator.evaluate(*operand);
      return negates ? negate(evaluator, number) : add(evaluator, Value(int64_t{0}), number);
    });
  } else {
    value = parse_primary();
  }
  value = parse_postfix(value);
  while (with_filter) {
    if (take_symbol("|")) {
      value = parse_filter(value);
    } else if (take_name("is")) {
      value = parse_test(value);
    } else if (is_symbol("(")) {
      value = parse_call(value);
    } else {
      break;
    }
  }
  return value;
}

const Expression* ExpressionParser::parse_primary() {
  const int line = token().line;
  switch (token().kind) {
    case TokenKind::symbol:
      return parse_bracketed();
    case TokenKind::name:
      return parse_name();
    case TokenKind::integer:
      return parse_integer();
    case TokenKind::text: {
      std::string text;
      while (token().kind == TokenKind::text) text += take().text;
      return make_literal(line, Value::text(text));
    }
    case TokenKind::real:
      return make_literal(line, std::strtod(take().text.c_str(), nullptr));
    default:
      fail_unexpected("an expression");
  }
}

const Expression* ExpressionParser::parse_name() {
  static const std::pair<std::string_view, Value> constants[] = {{"true", true},   {"True", true},   {"false", false},
                                                                 {"False", false}, {"none", None{}}, {"None", None{}}};
  const Token first = take();
  for (const auto& [name, value] : constants) {
    if (name == first.text) return make_literal(first.line, value);
  }
  for (const std::string_view missing : {"self", "lipsum"}) {
    if (first.text == missing) fail(fmt::format("Jinja's '{}' is not supported", missing));
  }
  for (MacroDefinition* macro : macros_) {
    macro->takes_caller = macro->takes_caller || first.text == "caller";
    macro->takes_varargs = macro->takes_varargs || first.text == "varargs";
    macro->takes_kwargs = macro->takes_kwargs || first.text == "kwargs";
  }
  return make(first.line, [name = first.text](Evaluator& evaluator) { return evaluator.find(name); });
}

const Expression* ExpressionParser::parse_integer() {
  const Token digits = take();
  if (const auto big = read_big_integer(digits.text)) return make_literal(digits.line, *big);
  const bool is_prefixed = digits.text.size() > 1 && digits.text[1] > '9';
  const int base = !is_prefixed ? 10 : digits.text[1] == 'x' ? 16 : digits.text[1] == 'o' ? 8 : 2;
  const char* const end = digits.text.data() + digits.text.size();
  int64_t number = 0;
  const auto [stop, error] = std::from_chars(digits.text.data() + (is_prefixed ? 2 : 0), end, number, base);
  if (error != std::errc() || stop != end) {
    fail_at(template_.name, digits.line, fmt::format("the integer {} does not fit 64 bits", digits.text));
  }
  return make_literal(digits.line, number);
}

/// Parses what commas divide, up to the bracket `end`; a comma may follow the last part.
template <class Parse>
void ExpressionParser::parse_list(std::string_view end, const Parse& parse) {
  for (bool is_first = true; !take_symbol(end); is_first = false) {
    if (!is_first) {
      expect_symbol(",");
      if (take_symbol(end)) return;
    }
    parse();
  }
}

const Expression* ExpressionParser::parse_bracketed() {
  const int line = token().line;
  if (take_symbol("(")) {
    if (take_symbol(")"))
      return make(line, [](Evaluator& evaluator) { return evaluator.list({}, SequenceKind::tuple); });
    const Expression* inside = parse_tuple();
    expect_symbol(")");
    return inside;
  }
  if (take_symbol("[")) {
    Expressions items;
    parse_list("]", [&] { items.push_back(parse_expression()); });
    return make(line, [items](Evaluator& evaluator) { return evaluator.list(evaluator.evaluate(items)); });
  }
  if (!take_symbol("{")) fail_unexpected("an expression");
  const int inside = token().line;
  std::vector<std::pair<const Expression*, const Expression*>> entries;
  parse_list("}", [&] {
    const Expression* key = parse_expression();
    expect_symbol(":");
    entries.emplace_back(key, parse_expression());
  });
  return make(inside, [entries](Evaluator& evaluator) {
    std::vector<std::pair<Value, Value>> values;
    values.reserve(entries.size());
    for (const auto& [key, value] : entries) {
      Value evaluated = evaluator.evaluate(*key);
      values.emplace_back(std::move(evaluated), evaluator.evaluate(*value));
    }
    return evaluator.dict(std::move(values));
  });
}

const Expression* ExpressionParser::parse_postfix(const Expression* expression) {
  for (;;) {
    if (is_symbol(".") || is_symbol("[")) {
      expression = parse_subscript(expression);
    } else if (is_symbol("(")) {
      expression = parse_call(expression);
    } else {
      return expression;
    }
  }
}

const Expression* ExpressionParser::make_item(int line, const Expression* object, const Expression* key) {
  return make(line, [object, key](Evaluator& evaluator) {
    const Value from = evaluator.evaluate(*object);
    return evaluator.item(from, evaluator.evaluate(*key));
  });
}

const Expression* ExpressionParser::parse_subscript(const Expression* object) {
  const int line = token().line;
  if (take_symbol(".")) {
    if (token().kind == TokenKind::integer) {
      return make_item(line, object, make_literal(line, int64_t{std::strtoll(take().text.c_str(), nullptr, 10)}));
    }
    return make(line, [object, name = expect_identifier()](Evaluator& evaluator) {
      return evaluator.attribute(evaluator.evaluate(*object), name);
    });
  }
  expect_symbol("[");
  const auto bound = [&]() -> const Expression* {
    return is_symbol(":") || is_symbol("]") ? nullptr : parse_expression();
  };
  const Expression *start = bound(), *stop = nullptr, *step = nullptr;
  if (!is_symbol(":")) {
    if (start == nullptr) fail("an expression is missing between [ and ]");
    if (is_symbol(",")) fail("an index of several parts is not supported");
    expect_symbol("]");
    return make_item(line, object, start);
  }
  take_symbol(":");
  stop = bound();
  if (take_symbol(":")) step = bound();
  expect_symbol("]");
  return make(line, [object, start, stop, step](Evaluator& evaluator) {
    const Value from = evaluator.evaluate(*object);
    std::optional<Value> bounds[3];
    const Expression* const expressions[3] = {start, stop, step};
    for (size_t i = 0; i < 3; ++i) {
      if (expressions[i] != nullptr) bounds[i] = evaluator.evaluate(*expressions[i]);
    }
    const auto given = [&](size_t i) { return bounds[i] ? &*bounds[i] : nullptr; };
    return slice(evaluator, from, given(0), given(1), given(2));
  });
}

CallArguments ExpressionParser::parse_arguments() {
  const Nesting nesting(*this);
  CallArguments arguments;
  const auto require = [&](bool holds) {
    if (!holds) fail("invalid syntax of the call's arguments");
  };
  expect_symbol("(");
  parse_list(")", [&] {
    if (take_symbol("*")) {
      require(arguments.star == nullptr && arguments.double_star == nullptr);
      arguments.star = parse_expression();
    } else if (take_symbol("**")) {
      require(arguments.double_star == nullptr);
      arguments.double_star = parse_expression();
    } else if (token().kind == TokenKind::name && next().kind == TokenKind::symbol && next().text == "=") {
      require(arguments.double_star == nullptr);
      const std::string name = take().text;
      take();
      arguments.named.emplace_back(name, parse_expression());
    } else {
      if (!arguments.named.empty() || arguments.star != nullptr || arguments.double_star != nullptr) {
        fail("a positional argument follows a named one");
      }
      arguments.positional.push_back(parse_expression());
    }
  });
  return arguments;
}

const Expression* ExpressionParser::parse_call(const Expression* callee) {
  const int line = token().line;
  template_.calls.push_back({callee, parse_arguments()});
  Expression* made = make(line, [&call = template_.calls.back()](Evaluator& evaluator) {
    const Value function = evaluator.evaluate(*call.callee);
    return evaluator.call(function, evaluator.arguments(call.arguments));
  });
  made->call = &template_.calls.back();
  return made;
}

std::string ExpressionParser::parse_dotted_name() {
  std::string name = expect_identifier();
  while (take_symbol(".")) name += "." + expect_identifier();
  return name;
}

const Expression* ExpressionParser::parse_filter(const Expression* input) {
  const int line = token().line;
  const std::string name = parse_dotted_name();
  const NamedFunction* filter = find_filter(name);
  if (filter == nullptr && conditions_ == 0) fail(unsupported("filter", name));
  const CallArguments arguments = is_symbol("(") ? parse_arguments() : CallArguments();
  return make(line, [input, name, filter, arguments](Evaluator& evaluator) {
    if (filter == nullptr) evaluator.fail(unsupported("filter", name));
    const Value value = input == nullptr ? evaluator.take_captured() : evaluator.evaluate(*input);
    return filter->run(evaluator, value, evaluator.arguments(arguments));
  });
}

const Expression* ExpressionParser::parse_test(const Expression* input) {
  const int line = token().line;
  const bool negated = take_name("not");
  const std::string name = parse_dotted_name();
  const NamedTest* test = find_test(name);
  if (test == nullptr && conditions_ == 0) fail(unsupported("test", name));
  const TokenKind kind = token().kind;
  CallArguments arguments;
  if (is_symbol("(")) {
    arguments = parse_arguments();
  } else if (is_symbol("[") || is_symbol("{") || kind == TokenKind::text || kind == TokenKind::integer ||
             kind == TokenKind::real ||
             (kind == TokenKind::name && !is_name("else") && !is_name("or") && !is_name("and"))) {
    if (is_name("is")) fail("tests cannot be chained with is");
    arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  const Expression* tested = make(line, [input, name, test, arguments](Evaluator& evaluator) {
    if (test == nullptr) evaluator.fail(unsupported("test", name));
    const Value value = evaluator.evaluate(*input);
    return test->run(evaluator, value, evaluator.arguments(arguments));
  });
  return negated ? make_not(line, tested) : tested;
}

}  // namespace llmtrain::jinja
