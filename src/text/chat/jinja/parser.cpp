#include "text/chat/jinja/parser.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace llmtrain::jinja {

class Parser::FunctionBody {
 public:
  explicit FunctionBody(Parser& parser) : parser_(parser), loops_(parser.loops_) { parser_.loops_ = 0; }
  ~FunctionBody() { parser_.loops_ = loops_; }
  FunctionBody(const FunctionBody&) = delete;
  FunctionBody& operator=(const FunctionBody&) = delete;

 private:
  Parser& parser_;
  const int loops_;
};

bool Parser::take_symbol(std::string_view text) {
  const bool found = is_symbol(text);
  if (found) take();
  return found;
}

bool Parser::take_name(std::string_view text) {
  const bool found = is_name(text);
  if (found) take();
  return found;
}

void Parser::fail_unexpected(std::string_view expected) const {
  static constexpr const char* ends[] = {"text", "{%", "the end of the tag", "{{", "the end of the tag"};
  const auto kind = static_cast<size_t>(token().kind);
  const std::string found = token().kind == TokenKind::end ? "the end of the template"
                            : kind < std::size(ends)       ? std::string(ends[kind])
                                                           : "'" + token().text + "'";
  fail(fmt::format("{} is expected, not {}", expected, found));
}

void Parser::expect_symbol(std::string_view text) {
  if (!take_symbol(text)) fail_unexpected(fmt::format("'{}'", text));
}
void Parser::expect_name(std::string_view text) {
  if (!take_name(text)) fail_unexpected(fmt::format("'{}'", text));
}
std::string Parser::expect_identifier() {
  if (token().kind != TokenKind::name) fail_unexpected("a name");
  return take().text;
}
void Parser::expect_block_end() {
  if (token().kind != TokenKind::block_end) fail_unexpected("the end %} of the tag");
  take();
}

Template Parser::run() {
  template_.body = parse_body({});
  return std::move(template_);
}

/// Parses until one of the tags `ends`, of which it takes the "{%"; without ends, to the end of the template.
Body Parser::parse_body(std::initializer_list<std::string_view> ends) {
  const Nesting nesting(*this);
  Body body;
  for (;;) {
    const Token first = token();
    if (first.kind == TokenKind::end) {
      if (ends.size() == 0) return body;
      fail(fmt::format("the template ends before {{% {} %}}", *(ends.end() - 1)));
    }
    take();
    if (first.kind == TokenKind::data) {
      auto* data = make<Data>(first.line);
      data->text = first.text;
      body.push_back(data);
    } else if (first.kind == TokenKind::print_begin) {
      auto* print = make<Print>(first.line);
      print->value = parse_expressions_as_tuple();
      if (token().kind != TokenKind::print_end) fail_unexpected("the end }} of the tag");
      take();
      body.push_back(print);
    } else {
      if (token().kind != TokenKind::name) fail_unexpected("the name of a statement");
      if (std::find(ends.begin(), ends.end(), token().text) != ends.end()) return body;
      body.push_back(parse_statement());
    }
  }
}

const Statement* Parser::parse_statement() {
  static constexpr struct {
    std::string_view name;
    const Statement* (Parser::*parse)();
  } statements[] = {{"if", &Parser::parse_if},
                    {"for", &Parser::parse_for},
                    {"set", &Parser::parse_set},
                    {"macro", &Parser::parse_macro},
                    {"call", &Parser::parse_call_block},
                    {"filter", &Parser::parse_filter_block},
                    {"with", &Parser::parse_with},
                    {"generation", &Parser::parse_generation},
                    {"break", &Parser::parse_loop_control},
                    {"continue", &Parser::parse_loop_control}};
  for (const auto& statement : statements) {
    if (is_name(statement.name)) return (this->*statement.parse)();
  }
  fail(fmt::format("the tag '{}' is not supported here", token().text));
}

const Statement* Parser::parse_if() {
  auto* node = make<If>(take().line);
  ++conditions_;
  for (;;) {
    const Expression* test = parse_expressions_as_tuple(false);
    expect_block_end();
    node->branches.emplace_back(test, parse_body({"elif", "else", "endif"}));
    if (!take_name("elif")) break;
  }
  if (take_name("else")) {
    expect_block_end();
    node->otherwise = parse_body({"endif"});
  }
  --conditions_;
  expect_name("endif");
  expect_block_end();
  return node;
}

const Statement* Parser::parse_for() {
  auto* node = make<For>(take().line);
  node->target = parse_targets(false);
  expect_name("in");
  node->items = parse_expressions_as_tuple(false);
  if (take_name("if")) node->condition = parse_expression();
  node->is_recursive = take_name("recursive");
  expect_block_end();
  ++loops_;
  node->body = parse_body({"else", "endfor"});
  --loops_;
  if (take_name("else")) {
    expect_block_end();
    node->otherwise = parse_body({"endfor"});
  }
  expect_name("endfor");
  expect_block_end();
  return node;
}

Target Parser::parse_target(bool with_attribute) {
  const Nesting nesting(*this);
  if (take_symbol("(")) {
    Target inside = parse_targets(with_attribute);
    expect_symbol(")");
    return inside;
  }
  Target target;
  target.name = expect_identifier();
  for (const std::string_view constant : {"true", "True", "false", "False", "none", "None"}) {
    if (target.name == constant) fail(fmt::format("'{}' cannot be assigned to", constant));
  }
  if (with_attribute && take_symbol(".")) target.attribute = expect_identifier();
  return target;
}

Target Parser::parse_targets(bool with_attribute) {
  Target first = parse_target(with_attribute);
  if (!is_symbol(",")) return first;
  Target all;
  all.is_several = true;
  all.several.push_back(std::move(first));
  while (take_symbol(",")) {
    if (is_name("in") || is_symbol("=") || is_symbol(")")) break;
    all.several.push_back(parse_target(with_attribute));
  }
  return all;
}

const Statement* Parser::parse_set() {
  const int line = take().line;
  Target target = parse_targets(true);
  if (take_symbol("=")) {
    auto* node = make<Set>(line);
    node->target = std::move(target);
    node->value = parse_expressions_as_tuple();
    expect_block_end();
    return node;
  }
  auto* node = make<SetBlock>(line);
  node->target = std::move(target);
  while (take_symbol("|")) node->filter = parse_filter(node->filter);
  expect_block_end();
  node->body = parse_body({"endset"});
  take();
  expect_block_end();
  return node;
}

void Parser::parse_parameters(MacroDefinition& macro) {
  expect_symbol("(");
  while (!take_symbol(")")) {
    if (!macro.parameters.empty()) expect_symbol(",");
    const std::string name = expect_identifier();
    const Expression* standard = nullptr;
    if (take_symbol("=")) {
      standard = parse_expression();
    } else if (!macro.parameters.empty() && macro.parameters.back().second != nullptr) {
      fail("a parameter without a default follows one that has a default");
    }
    macro.parameters.emplace_back(name, standard);
  }
}

void Parser::parse_macro_body(MacroDefinition& macro, std::string_view end) {
  expect_block_end();
  const FunctionBody function(*this);
  macros_.push_back(&macro);
  macro.body = parse_body({end});
  macros_.pop_back();
  take();
  expect_block_end();
}

const Statement* Parser::parse_macro() {
  auto* node = make<Macro>(take().line);
  node->definition.name = expect_identifier();
  node->definition.line = node->line;
  parse_parameters(node->definition);
  parse_macro_body(node->definition, "endmacro");
  return node;
}

const Statement* Parser::parse_call_block() {
  auto* node = make<CallBlock>(take().line);
  node->caller.name.clear();
  node->caller.line = node->line;
  if (is_symbol("(")) parse_parameters(node->caller);
  node->call = dynamic_cast<const Call*>(parse_expression());
  if (node->call == nullptr) fail("the tag 'call' needs a call, as in {% call macro() %}");
  parse_macro_body(node->caller, "endcall");
  return node;
}

const Statement* Parser::parse_filter_block() {
  auto* node = make<FilterBlock>(take().line);
  do {
    node->filter = parse_filter(node->filter);
  } while (take_symbol("|"));
  expect_block_end();
  node->body = parse_body({"endfilter"});
  take();
  expect_block_end();
  return node;
}

const Statement* Parser::parse_with() {
  auto* node = make<With>(take().line);
  while (token().kind != TokenKind::block_end) {
    if (!node->variables.empty()) expect_symbol(",");
    Target target = parse_target(false);
    expect_symbol("=");
    node->variables.emplace_back(std::move(target), parse_expression());
  }
  expect_block_end();
  node->body = parse_body({"endwith"});
  take();
  expect_block_end();
  return node;
}

const Statement* Parser::parse_generation() {
  auto* node = make<Generation>(take().line);
  expect_block_end();
  const FunctionBody function(*this);
  template_.has_generation = true;
  node->body = parse_body({"endgeneration"});
  take();
  expect_block_end();
  return node;
}

const Statement* Parser::parse_loop_control() {
  if (loops_ == 0) fail(fmt::format("'{}' is outside of a loop", token().text));
  auto* node = make<LoopControl>(token().line);
  node->flow = take().text == "break" ? Flow::leave_loop : Flow::next_item;
  expect_block_end();
  return node;
}

Template parse_template(std::string_view source, const std::string& name) { return Parser(source, name).run(); }

}  // namespace llmtrain::jinja
