#pragma once
// Parser of templates: Jinja 3.1's grammar with the extension loopcontrols and Transformers' generation blocks, without
// what refers to other templates (extends, include, import, block).

#include <string>
#include <string_view>
#include <vector>

#include "text/chat/jinja/ast.hpp"
#include "text/chat/jinja/lexer.hpp"

namespace llmtrain::jinja {

/// Parses a template. `name` is for messages. UserError(bad_content) "name:line: message".
Template parse_template(std::string_view source, const std::string& name);

class Parser {
 public:
  Parser(std::string_view source, const std::string& name) : tokens_(tokenize(source, name)) { template_.name = name; }
  Template run();

 private:
  // Tokens.
  const Token& token() const { return tokens_[at_]; }
  Token take() { return tokens_[token().kind == TokenKind::end ? at_ : at_++]; }
  bool is_symbol(std::string_view text) const { return token().kind == TokenKind::symbol && token().text == text; }
  bool is_name(std::string_view text) const { return token().kind == TokenKind::name && token().text == text; }
  bool take_symbol(std::string_view text);
  bool take_name(std::string_view text);
  void expect_symbol(std::string_view text);
  void expect_name(std::string_view text);
  std::string expect_identifier();
  [[noreturn]] void fail(std::string_view message) const { fail_at(template_.name, token().line, message); }
  [[noreturn]] void fail_unexpected(std::string_view expected) const;

  template <class T>
  T* make(int line) {
    auto node = std::make_unique<T>();
    T* pointer = node.get();
    pointer->line = line;
    template_.nodes.push_back(std::move(node));
    return pointer;
  }

  // Expressions (expression_parser.cpp), from the weakest to the strongest operator.
  const Expression* parse_expression(bool with_condition = true);
  const Expression* parse_expressions_as_tuple(bool with_condition = true);
  const Expression* parse_or();
  const Expression* parse_and();
  const Expression* parse_not();
  const Expression* parse_comparison();
  const Expression* parse_sum();
  const Expression* parse_concatenation();
  const Expression* parse_product();
  const Expression* parse_power();
  const Expression* parse_unary(bool with_filter = true);
  const Expression* parse_primary();
  const Expression* parse_bracketed();
  const Expression* parse_dict();
  const Expression* parse_postfix(const Expression* expression);
  const Expression* parse_filters(const Expression* expression);
  const Expression* parse_subscript(const Expression* object);
  const Expression* parse_call(const Expression* callee);
  const Expression* parse_filter(const Expression* input);
  const Expression* parse_test(const Expression* input);
  CallArguments parse_arguments();
  template <class Operand>
  const Expression* parse_binary(std::string_view symbols, const Operand& operand);

  // Statements.
  Body parse_body(std::initializer_list<std::string_view> ends);
  const Statement* parse_statement();
  const Statement* parse_if();
  const Statement* parse_for();
  const Statement* parse_set();
  const Statement* parse_macro();
  const Statement* parse_call_block();
  const Statement* parse_filter_block();
  const Statement* parse_with();
  const Statement* parse_generation();
  const Statement* parse_loop_control();
  void expect_block_end();
  Target parse_target(bool with_attribute);
  Target parse_targets(bool with_attribute);
  void parse_parameters(MacroDefinition& macro);
  void parse_macro_body(MacroDefinition& macro, std::string_view end);

  /// Counts nested expressions and blocks, whose number is limited.
  class Nesting;
  /// Blocks of code that Jinja compiles into a function of its own: a loop does not reach over it.
  class FunctionBody;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;                         // around this place, inside its function
  int conditions_ = 0;                    // branches around this place: an unknown filter is an error only when it runs
  std::vector<MacroDefinition*> macros_;  // around this place
  Template template_;
};

class Parser::Nesting {
 public:
  explicit Nesting(Parser& parser) : parser_(parser) {
    if (++parser_.nesting_ > 200) parser_.fail("expressions or blocks are nested too deeply (more than 200)");
  }
  ~Nesting() { --parser_.nesting_; }
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;

 private:
  Parser& parser_;
};

}  // namespace llmtrain::jinja
