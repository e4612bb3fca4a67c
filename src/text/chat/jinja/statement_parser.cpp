#include <fmt/format.h>

#include <algorithm>

#include "text/chat/jinja/evaluator.hpp"
#include "text/chat/jinja/expression_parser.hpp"
#include "text/chat/jinja/printing.hpp"

namespace llmtrain::jinja {
namespace {

/// Runs a body in a scope of its own and returns its output.
Flow run_captured(Evaluator& evaluator, const Body& body, MarkedText& text) {
  const Evaluator::Inner inner(evaluator);
  Evaluator::Capture capture(evaluator);
  const Flow flow = evaluator.run(body);
  text = std::move(capture.text);
  return flow;
}

Value apply_filter(Evaluator& evaluator, const Expression* filter, MarkedText text) {
  Value value = evaluator.text(std::move(text));
  if (filter == nullptr) return value;
  evaluator.push_captured(std::move(value));
  Value result = evaluator.evaluate(*filter);
  evaluator.pop_captured();
  return result;
}

class StatementParser : public ExpressionParser {
 public:
  StatementParser(std::string_view source, const std::string& name) : ExpressionParser(source, name) {}

  Template run() {
    template_.body = parse_body({});
    return std::move(template_);
  }

 private:
  const Statement* make(int line, std::function<Flow(Evaluator&)> run) {
    template_.statements.push_back({line, std::move(run)});
    return &template_.statements.back();
  }

  void expect_block_end() { expect(TokenKind::block_end, "the end %} of the tag"); }

  /// Parses the end of a tag, what follows it up to the tag `end`, and that.
  Body parse_block(std::string_view end) {
    expect_block_end();
    Body body = parse_body({end});
    expect_name(end);
    expect_block_end();
    return body;
  }

  /// Parses likewise a block that Jinja compiles into a function of its own: a loop does not reach over it.
  Body parse_function(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Body body = parse_block(end);
    loops_ = loops;
    return body;
  }

  /// Parses until one of the tags `ends`, of which it takes the "{%"; without ends, to the end of the template.
  Body parse_body(std::initializer_list<std::string_view> ends) {
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
        body.push_back(make(first.line, [text = first.text](Evaluator& evaluator) {
          evaluator.print(text);
          return Flow::next;
        }));
      } else if (first.kind == TokenKind::print_begin) {
        body.push_back(make(first.line, [value = parse_tuple()](Evaluator& evaluator) {
          evaluator.print(to_text(evaluator, evaluator.evaluate(*value)));
          return Flow::next;
        }));
        expect(TokenKind::print_end, "the end }} of the tag");
      } else {
        if (token().kind != TokenKind::name) fail_unexpected("the name of a statement");
        if (std::ranges::find(ends, token().text) != ends.end()) return body;
        body.push_back(parse_statement());
      }
    }
  }

  const Statement* parse_statement() {
    const int line = token().line;
    if (take_name("if")) return parse_if(line);
    if (take_name("for")) return parse_for(line);
    if (take_name("set")) return parse_set(line);
    if (take_name("macro")) return parse_macro(line);
    if (take_name("call")) return parse_call_block(line);
    if (take_name("filter")) return parse_filter_block(line);
    if (take_name("with")) return parse_with(line);
    if (take_name("generation")) return parse_generation(line);
    if (is_name("break") || is_name("continue")) return parse_loop_control(line);
    fail(fmt::format("the tag '{}' is not supported here", token().text));
  }

  const Statement* parse_if(int line) {
    std::vector<std::pair<const Expression*, Body>> branches;
    Body otherwise;
    ++conditions_;
    do {
      const Expression* test = parse_tuple(false);
      expect_block_end();
      branches.emplace_back(test, parse_body({"elif", "else", "endif"}));
    } while (take_name("elif"));
    if (take_name("else")) {
      expect_block_end();
      otherwise = parse_body({"endif"});
    }
    --conditions_;
    expect_name("endif");
    expect_block_end();
    return make(line, [branches, otherwise](Evaluator& evaluator) {
      for (const auto& [test, body] : branches) {
        if (evaluator.evaluate(*test).truth()) return evaluator.run(body);
      }
      return evaluator.run(otherwise);
    });
  }

  const Statement* parse_for(int line) {
    ForLoop& loop = template_.loops.emplace_back();
    loop.target = parse_targets(false);
    expect_name("in");
    loop.items = parse_tuple(false);
    if (take_name("if")) loop.condition = parse_expression();
    loop.is_recursive = take_name("recursive");
    expect_block_end();
    ++loops_;
    loop.body = parse_body({"else", "endfor"});
    --loops_;
    if (take_name("else")) {
      expect_block_end();
      loop.otherwise = parse_body({"endfor"});
    }
    expect_name("endfor");
    expect_block_end();
    return make(
        line, [&loop](Evaluator& evaluator) { return run_loop(evaluator, loop, evaluator.evaluate(*loop.items), 0); });
  }

  Target parse_target(bool with_attribute) {
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

  Target parse_targets(bool with_attribute) {
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

  const Statement* parse_set(int line) {
    const Target target = parse_targets(true);
    if (take_symbol("=")) {
      const Expression* value = parse_tuple();
      expect_block_end();
      return make(line, [target, value](Evaluator& evaluator) {
        evaluator.assign(target, evaluator.evaluate(*value));
        return Flow::next;
      });
    }
    const Expression* filter = nullptr;
    while (take_symbol("|")) filter = parse_filter(filter);
    return make(line, [target, filter, body = parse_block("endset")](Evaluator& evaluator) {
      MarkedText text;
      const Flow flow = run_captured(evaluator, body, text);
      if (flow == Flow::next) evaluator.assign(target, apply_filter(evaluator, filter, std::move(text)));
      return flow;
    });
  }

  void parse_parameters(MacroDefinition& macro) {
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

  void parse_macro_body(MacroDefinition& macro, std::string_view end) {
    macros_.push_back(&macro);
    macro.body = parse_function(end);
    macros_.pop_back();
  }

  const Statement* parse_macro(int line) {
    MacroDefinition& macro = template_.macros.emplace_back();
    macro.name = expect_identifier();
    parse_parameters(macro);
    parse_macro_body(macro, "endmacro");
    return make(line, [&macro](Evaluator& evaluator) {
      evaluator.assign(macro.name, make_macro(evaluator, macro));
      return Flow::next;
    });
  }

  const Statement* parse_call_block(int line) {
    MacroDefinition& caller = template_.macros.emplace_back();
    if (is_symbol("(")) parse_parameters(caller);
    const Call* call = parse_expression()->call;
    if (call == nullptr) fail("the tag 'call' needs a call, as in {% call macro() %}");
    parse_macro_body(caller, "endcall");
    return make(line, [&caller, call](Evaluator& evaluator) {
      const Value function = evaluator.evaluate(*call->callee);
      Arguments arguments = evaluator.arguments(call->arguments);
      arguments.named.emplace_back("caller", make_macro(evaluator, caller));
      evaluator.print(to_text(evaluator, evaluator.call(function, arguments)));
      return Flow::next;
    });
  }

  const Statement* parse_filter_block(int line) {
    const Expression* filter = nullptr;
    do {
      filter = parse_filter(filter);
    } while (take_symbol("|"));
    return make(line, [filter, body = parse_block("endfilter")](Evaluator& evaluator) {
      MarkedText text;
      const Flow flow = run_captured(evaluator, body, text);
      if (flow == Flow::next) evaluator.print(to_text(evaluator, apply_filter(evaluator, filter, std::move(text))));
      return flow;
    });
  }

  const Statement* parse_with(int line) {
    std::vector<Target> targets;
    Expressions values;
    while (token().kind != TokenKind::block_end) {
      if (!targets.empty()) expect_symbol(",");
      targets.push_back(parse_target(false));
      expect_symbol("=");
      values.push_back(parse_expression());
    }
    return make(line, [targets, values, body = parse_block("endwith")](Evaluator& evaluator) {
      const std::vector<Value> found = evaluator.evaluate(values);
      const Evaluator::Inner inner(evaluator);
      for (size_t i = 0; i < found.size(); ++i) evaluator.assign(targets[i], found[i]);
      return evaluator.run(body);
    });
  }

  const Statement* parse_generation(int line) {
    template_.has_generation = true;
    return make(line, [body = parse_function("endgeneration")](Evaluator& evaluator) {
      MarkedText text;
      run_captured(evaluator, body, text);
      text.add_marks(mark::generated | (++evaluator.blocks % 2 != 0 ? mark::odd_block : 0));
      evaluator.print(text);
      return Flow::next;
    });
  }

  const Statement* parse_loop_control(int line) {
    if (loops_ == 0) fail(fmt::format("'{}' is outside of a loop", token().text));
    const Flow flow = take().text == "break" ? Flow::leave_loop : Flow::next_item;
    expect_block_end();
    return make(line, [flow](Evaluator&) { return flow; });
  }

  int loops_ = 0;  // around this place, inside its function
};

}  // namespace

Template parse_template(std::string_view source, const std::string& name) {
  return StatementParser(source, name).run();
}

}  // namespace llmtrain::jinja
