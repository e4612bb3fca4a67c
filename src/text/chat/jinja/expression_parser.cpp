#include <fmt/format.h>

#include <charconv>

#include "text/chat/jinja/filters.hpp"
#include "text/chat/jinja/operators.hpp"
#include "text/chat/jinja/parser.hpp"

namespace llmtrain::jinja {

const Expression* Parser::parse_expression(bool with_condition) {
  const Nesting nesting(*this);
  const Expression* value = parse_or();
  while (with_condition && is_name("if")) {
    auto* node = make<Conditional>(take().line);
    node->then = value;
    node->test = parse_or();
    ++conditions_;
    if (take_name("else")) node->otherwise = parse_expression();
    --conditions_;
    value = node;
  }
  return value;
}

const Expression* Parser::parse_expressions_as_tuple(bool with_condition) {
  const int line = token().line;
  const Expression* first = parse_expression(with_condition);
  if (!is_symbol(",")) return first;
  auto* tuple = make<SequenceLiteral>(line);
  tuple->is_tuple = true;
  tuple->items.push_back(first);
  while (take_symbol(",")) {
    const TokenKind kind = token().kind;
    if (kind == TokenKind::block_end || kind == TokenKind::print_end || is_symbol(")") || is_name("in")) break;
    tuple->items.push_back(parse_expression(with_condition));
  }
  return tuple;
}

const Expression* Parser::parse_or() {
  const Expression* left = parse_and();
  while (is_name("or")) {
    auto* node = make<Logic>(take().line);
    node->is_and = false;
    node->left = left;
    node->right = parse_and();
    left = node;
  }
  return left;
}

const Expression* Parser::parse_and() {
  const Expression* left = parse_not();
  while (is_name("and")) {
    auto* node = make<Logic>(take().line);
    node->left = left;
    node->right = parse_not();
    left = node;
  }
  return left;
}

const Expression* Parser::parse_not() {
  if (!is_name("not")) return parse_comparison();
  const Nesting nesting(*this);
  auto* node = make<Unary>(take().line);
  node->symbol = '!';
  node->operand = parse_not();
  return node;
}

const Expression* Parser::parse_comparison() {
  static constexpr struct {
    std::string_view symbol;
    Comparison function;
  } comparisons[] = {{"==", is_equal},  {"!=", is_not_equal}, {"<", is_less},
                     {">", is_greater}, {"<=", is_at_most},   {">=", is_at_least}};
  const int line = token().line;
  const Expression* first = parse_sum();
  std::vector<std::pair<Comparison, const Expression*>> rest;
  for (;;) {
    Comparison function = nullptr;
    for (const auto& comparison : comparisons) {
      if (is_symbol(comparison.symbol)) function = comparison.function;
    }
    const bool is_not_in = is_name("not") && tokens_[at_ + 1].kind == TokenKind::name && tokens_[at_ + 1].text == "in";
    if (is_name("in")) function = is_in;
    if (is_not_in) {
      take();
      function = is_not_in_container;
    }
    if (function == nullptr) break;
    take();
    rest.emplace_back(function, parse_sum());
  }
  if (rest.empty()) return first;
  auto* node = make<Comparisons>(line);
  node->first = first;
  node->rest = std::move(rest);
  return node;
}

template <class Operand>
const Expression* Parser::parse_binary(std::string_view symbols, const Operand& operand) {
  static constexpr struct {
    std::string_view symbol;
    BinaryFunction function;
  } operators[] = {{"+", add},           {"-", subtract}, {"*", multiply}, {"/", divide},
                   {"//", floor_divide}, {"%", modulo},   {"**", power}};
  const Expression* left = operand();
  for (;;) {
    BinaryFunction function = nullptr;
    for (const auto& entry : operators) {
      const std::string listed = " " + std::string(entry.symbol) + " ";
      if (symbols.find(listed) != std::string_view::npos && is_symbol(entry.symbol)) function = entry.function;
    }
    if (function == nullptr) return left;
    auto* node = make<Binary>(take().line);
    node->function = function;
    node->left = left;
    node->right = operand();
    left = node;
  }
}

const Expression* Parser::parse_sum() {
  return parse_binary(" + - ", [this] { return parse_concatenation(); });
}
const Expression* Parser::parse_product() {
  return parse_binary(" * / // % ", [this] { return parse_power(); });
}
const Expression* Parser::parse_power() {
  return parse_binary(" ** ", [this] { return parse_unary(); });
}

const Expression* Parser::parse_concatenation() {
  const int line = token().line;
  const Expression* first = parse_product();
  if (!is_symbol("~")) return first;
  auto* node = make<Concatenation>(line);
  node->parts.push_back(first);
  while (take_symbol("~")) node->parts.push_back(parse_product());
  return node;
}

const Expression* Parser::parse_unary(bool with_filter) {
  const Nesting nesting(*this);
  const Expression* value = nullptr;
  if (is_symbol("-") || is_symbol("+")) {
    const Token sign = take();
    auto* node = make<Unary>(sign.line);
    node->symbol = sign.text.front();
    node->operand = parse_unary(false);
    value = node;
  } else {
    value = parse_primary();
  }
  value = parse_postfix(value);
  return with_filter ? parse_filters(value) : value;
}

const Expression* Parser::parse_primary() {
  static const struct {
    std::string_view name;
    Value value;
  } constants[] = {{"true", Value(true)},   {"True", Value(true)},   {"false", Value(false)},
                   {"False", Value(false)}, {"none", Value(None{})}, {"None", Value(None{})}};
  const Token first = token();
  if (first.kind == TokenKind::symbol) return parse_bracketed();
  auto* literal = make<Literal>(first.line);
  if (first.kind == TokenKind::name) {
    take();
    for (const auto& constant : constants) {
      if (constant.name != first.text) continue;
      literal->value = constant.value;
      return literal;
    }
    for (const std::string_view missing : {"self", "lipsum"}) {
      if (first.text == missing) fail(fmt::format("Jinja's '{}' is not supported", missing));
    }
    for (MacroDefinition* macro : macros_) {
      macro->takes_caller = macro->takes_caller || first.text == "caller";
      macro->takes_varargs = macro->takes_varargs || first.text == "varargs";
      macro->takes_kwargs = macro->takes_kwargs || first.text == "kwargs";
    }
    auto* name = make<Name>(first.line);
    name->name = first.text;
    return name;
  }
  if (first.kind == TokenKind::text) {
    std::string text;
    while (token().kind == TokenKind::text) text += take().text;
    literal->value = Value::text(text);
    return literal;
  }
  if (first.kind == TokenKind::integer) {
    take();
    const bool is_prefixed = first.text.size() > 1 && first.text[1] > '9';
    const int base = !is_prefixed ? 10 : first.text[1] == 'x' ? 16 : first.text[1] == 'o' ? 8 : 2;
    const char* const end = first.text.data() + first.text.size();
    int64_t number = 0;
    const auto [stop, error] = std::from_chars(first.text.data() + (is_prefixed ? 2 : 0), end, number, base);
    if (const auto big = read_big_integer(first.text)) {
      literal->value = Value(*big);
      return literal;
    }
    if (error != std::errc() || stop != end) {
      fail_at(template_.name, first.line, fmt::format("the integer {} does not fit 64 bits", first.text));
    }
    literal->value = Value(number);
    return literal;
  }
  if (first.kind == TokenKind::real) {
    take();
    double number = 0;
    std::from_chars(first.text.data(), first.text.data() + first.text.size(), number);
    literal->value = Value(number);
    return literal;
  }
  fail_unexpected("an expression");
}

const Expression* Parser::parse_bracketed() {
  const int line = token().line;
  if (take_symbol("(")) {
    if (take_symbol(")")) {
      auto* empty = make<SequenceLiteral>(line);
      empty->is_tuple = true;
      return empty;
    }
    const Expression* inside = parse_expressions_as_tuple();
    expect_symbol(")");
    return inside;
  }
  if (take_symbol("[")) {
    auto* list = make<SequenceLiteral>(line);
    while (!take_symbol("]")) {
      if (!list->items.empty()) {
        expect_symbol(",");
        if (take_symbol("]")) break;
      }
      list->items.push_back(parse_expression());
    }
    return list;
  }
  if (take_symbol("{")) return parse_dict();
  fail_unexpected("an expression");
}

const Expression* Parser::parse_dict() {
  auto* dict = make<DictLiteral>(token().line);
  while (!take_symbol("}")) {
    if (!dict->entries.empty()) {
      expect_symbol(",");
      if (take_symbol("}")) break;
    }
    const Expression* key = parse_expression();
    expect_symbol(":");
    dict->entries.emplace_back(key, parse_expression());
  }
  return dict;
}

const Expression* Parser::parse_postfix(const Expression* expression) {
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

const Expression* Parser::parse_filters(const Expression* expression) {
  for (;;) {
    if (take_symbol("|")) {
      expression = parse_filter(expression);
    } else if (take_name("is")) {
      expression = parse_test(expression);
    } else if (is_symbol("(")) {
      expression = parse_call(expression);
    } else {
      return expression;
    }
  }
}

const Expression* Parser::parse_subscript(const Expression* object) {
  const int line = token().line;
  if (take_symbol(".")) {
    if (token().kind == TokenKind::integer) {
      auto* index = make<Literal>(line);
      int64_t number = 0;
      const Token digits = take();
      std::from_chars(digits.text.data(), digits.text.data() + digits.text.size(), number);
      index->value = Value(number);
      auto* item = make<Item>(line);
      item->object = object;
      item->key = index;
      return item;
    }
    auto* node = make<Attribute>(line);
    node->object = object;
    node->name = expect_identifier();
    return node;
  }
  expect_symbol("[");
  const auto bound = [&]() -> const Expression* {
    return is_symbol(":") || is_symbol("]") ? nullptr : parse_expression();
  };
  const Expression* start = bound();
  if (!is_symbol(":")) {
    if (start == nullptr) fail("an expression is missing between [ and ]");
    auto* item = make<Item>(line);
    item->object = object;
    item->key = start;
    if (is_symbol(",")) fail("an index of several parts is not supported");
    expect_symbol("]");
    return item;
  }
  auto* slice = make<Slice>(line);
  slice->object = object;
  slice->start = start;
  take_symbol(":");
  slice->stop = bound();
  if (take_symbol(":")) slice->step = bound();
  expect_symbol("]");
  return slice;
}

CallArguments Parser::parse_arguments() {
  const Nesting nesting(*this);
  CallArguments arguments;
  expect_symbol("(");
  bool is_first = true;
  while (!take_symbol(")")) {
    if (!is_first) {
      expect_symbol(",");
      if (take_symbol(")")) break;
    }
    is_first = false;
    if (take_symbol("*")) {
      if (arguments.star != nullptr || arguments.double_star != nullptr) fail("invalid syntax of the call's arguments");
      arguments.star = parse_expression();
    } else if (take_symbol("**")) {
      if (arguments.double_star != nullptr) fail("invalid syntax of the call's arguments");
      arguments.double_star = parse_expression();
    } else if (token().kind == TokenKind::name && tokens_[at_ + 1].kind == TokenKind::symbol &&
               tokens_[at_ + 1].text == "=") {
      if (arguments.double_star != nullptr) fail("invalid syntax of the call's arguments");
      const std::string name = take().text;
      take();
      arguments.named.emplace_back(name, parse_expression());
    } else {
      if (!arguments.named.empty() || arguments.star != nullptr || arguments.double_star != nullptr) {
        fail("a positional argument follows a named one");
      }
      arguments.positional.push_back(parse_expression());
    }
  }
  return arguments;
}

const Expression* Parser::parse_call(const Expression* callee) {
  auto* node = make<Call>(token().line);
  node->callee = callee;
  node->arguments = parse_arguments();
  return node;
}

const Expression* Parser::parse_filter(const Expression* input) {
  auto* node = make<Filtered>(token().line);
  node->input = input;
  node->name = expect_identifier();
  while (take_symbol(".")) node->name += "." + expect_identifier();
  node->filter = find_filter(node->name);
  if (node->filter == nullptr && conditions_ == 0) fail(fmt::format("the filter \'{}\' is not supported", node->name));
  if (is_symbol("(")) node->arguments = parse_arguments();
  return node;
}

const Expression* Parser::parse_test(const Expression* input) {
  const int line = token().line;
  const bool negated = take_name("not");
  auto* node = make<Tested>(line);
  node->input = input;
  node->name = expect_identifier();
  while (take_symbol(".")) node->name += "." + expect_identifier();
  node->test = find_test(node->name);
  if (node->test == nullptr && conditions_ == 0) fail(fmt::format("the test \'{}\' is not supported", node->name));
  const TokenKind kind = token().kind;
  const bool opens = is_symbol("[") || is_symbol("{");
  if (is_symbol("(")) {
    node->arguments = parse_arguments();
  } else if (opens || kind == TokenKind::text || kind == TokenKind::integer || kind == TokenKind::real ||
             (kind == TokenKind::name && !is_name("else") && !is_name("or") && !is_name("and"))) {
    if (is_name("is")) fail("tests cannot be chained with is");
    node->arguments.positional.push_back(parse_postfix(parse_primary()));
  }
  if (!negated) return node;
  auto* inverted = make<Unary>(line);
  inverted->symbol = '!';
  inverted->operand = node;
  return inverted;
}

}  // namespace llmtrain::jinja
