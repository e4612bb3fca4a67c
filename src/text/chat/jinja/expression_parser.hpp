#pragma once
// Parser of expressions, from the weakest to the strongest operator.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat/jinja/lexer.hpp"
#include "text/chat/jinja/template.hpp"

namespace llmtrain::jinja {

class ExpressionParser : public TokenReader {
 protected:
  ExpressionParser(std::string_view source, const std::string& name) : TokenReader(source, name) {
    template_.name = name;
  }

  const Expression* parse_expression(bool with_condition = true);
  /// Several expressions with commas between them are a tuple.
  const Expression* parse_tuple(bool with_condition = true);
  /// Parses a filter after its "|". Without `input` it is applied to the text of the block.
  const Expression* parse_filter(const Expression* input);

  /// Counts nested expressions and blocks, whose number is limited.
  class Nesting {
   public:
    explicit Nesting(ExpressionParser& parser) : parser_(parser) {
      if (++parser_.nesting_ > 200) parser_.fail("expressions or blocks are nested too deeply (more than 200)");
    }
    ~Nesting() { --parser_.nesting_; }
    Nesting(const Nesting&) = delete;
    Nesting& operator=(const Nesting&) = delete;

   private:
    ExpressionParser& parser_;
  };

  Template template_;
  int conditions_ = 0;                    // branches around this place: an unknown filter is an error only when it runs
  std::vector<MacroDefinition*> macros_;  // around this place

 private:
  Expression* make(int line, std::function<Value(Evaluator&)> run) {
    template_.expressions.push_back({line, std::move(run)});
    return &template_.expressions.back();
  }
  const Expression* make_literal(int line, Value value);
  const Expression* make_not(int line, const Expression* operand);

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
  const Expression* parse_name();
  const Expression* parse_integer();
  const Expression* parse_bracketed();
  const Expression* parse_postfix(const Expression* expression);
  const Expression* parse_subscript(const Expression* object);
  const Expression* parse_call(const Expression* callee);
  const Expression* parse_test(const Expression* input);
  const Expression* make_item(int line, const Expression* object, const Expression* key);
  std::string parse_dotted_name();
  CallArguments parse_arguments();
  template <class Operators, class Operand>
  const Expression* parse_binary(const Operators& operators, const Operand& operand);
  template <class Parse>
  void parse_list(std::string_view end, const Parse& parse);

  int nesting_ = 0;
};

}  // namespace llmtrain::jinja
