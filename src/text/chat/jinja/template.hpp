#pragma once
// A parsed template: every expression and statement is a function, and the template owns them all in lists, so that a
// deep one ends without recursion; they refer to each other by plain pointers.

#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "text/chat/jinja/value.hpp"

namespace llmtrain::jinja {

struct Call;

struct Expression {
  int line;
  std::function<Value(Evaluator&)> run;
  const Call* call = nullptr;  ///< if it is a call
};
using Expressions = std::vector<const Expression*>;

struct CallArguments {
  Expressions positional;
  std::vector<std::pair<std::string, const Expression*>> named;
  const Expression* star = nullptr;
  const Expression* double_star = nullptr;
};
struct Call {
  const Expression* callee;
  CallArguments arguments;
};

/// End of a body.
enum class Flow : uint8_t { next, leave_loop, next_item };

struct Statement {
  int line;
  std::function<Flow(Evaluator&)> run;
};
using Body = std::vector<const Statement*>;

/// A name, an attribute of a namespace, or several targets among which a sequence is divided.
struct Target {
  std::string name;
  std::string attribute;
  std::vector<Target> several;
  bool is_several = false;
};

struct ForLoop {
  Target target;
  const Expression *items = nullptr, *condition = nullptr;  ///< condition may be null
  bool is_recursive = false;
  Body body, otherwise;
};
/// Runs the loop over the items of a value; `depth` counts the calls of a recursive loop.
Flow run_loop(Evaluator& evaluator, const ForLoop& loop, const Value& over, int64_t depth);

struct MacroDefinition {
  std::string name;
  std::vector<std::pair<std::string, const Expression*>> parameters;  ///< with defaults, which may be null
  Body body;
  bool takes_caller = false, takes_varargs = false, takes_kwargs = false;
};
/// Returns the macro as a value, which keeps the scope around it.
Value make_macro(Evaluator& evaluator, const MacroDefinition& definition);

struct Template {
  Template() = default;
  Template(Template&&) = default;  // a copy would refer to the other's parts

  std::string name;
  Body body;
  bool has_generation = false;
  std::deque<Expression> expressions;
  std::deque<Statement> statements;
  std::deque<Call> calls;
  std::deque<ForLoop> loops;
  std::deque<MacroDefinition> macros;
};

/// Parses a template: Jinja 3.1's grammar with the extension loopcontrols and Transformers' generation blocks, without
/// what refers to other templates (extends, include, import, block). `name` is for messages. UserError(bad_content)
/// "name:line: message".
Template parse_template(std::string_view source, const std::string& name);

}  // namespace llmtrain::jinja
