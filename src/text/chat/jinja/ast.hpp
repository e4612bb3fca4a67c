#pragma once
// Syntax tree of a template. The template owns all nodes in one list, so that a deep tree ends without recursion; nodes
// refer to each other by plain pointers.

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/chat/jinja/value.hpp"

namespace llmtrain::jinja {

struct FilterEntry;
struct TestEntry;

struct Node {
  int line = 1;
  virtual ~Node() = default;
};

struct Expression : Node {
  virtual Value evaluate(Evaluator& evaluator) const = 0;
};
using Expressions = std::vector<const Expression*>;

/// End of a body.
enum class Flow : uint8_t { next, leave_loop, next_item };

struct Statement : Node {
  virtual Flow run(Evaluator& evaluator) const = 0;
};
using Body = std::vector<const Statement*>;

struct CallArguments {
  Expressions positional;
  std::vector<std::pair<std::string, const Expression*>> named;
  const Expression* star = nullptr;
  const Expression* double_star = nullptr;
};

struct Literal : Expression {
  Value value;
  Value evaluate(Evaluator&) const override { return value; }
};
struct Name : Expression {
  std::string name;
  Value evaluate(Evaluator& evaluator) const override;
};
struct SequenceLiteral : Expression {
  bool is_tuple = false;
  Expressions items;
  Value evaluate(Evaluator& evaluator) const override;
};
struct DictLiteral : Expression {
  std::vector<std::pair<const Expression*, const Expression*>> entries;
  Value evaluate(Evaluator& evaluator) const override;
};
struct Unary : Expression {
  char symbol = '-';  ///< - + or ! for not
  const Expression* operand = nullptr;
  Value evaluate(Evaluator& evaluator) const override;
};
using BinaryFunction = Value (*)(Evaluator&, const Value&, const Value&);
struct Binary : Expression {
  BinaryFunction function = nullptr;
  const Expression *left = nullptr, *right = nullptr;
  Value evaluate(Evaluator& evaluator) const override;
};
struct Logic : Expression {
  bool is_and = true;
  const Expression *left = nullptr, *right = nullptr;
  Value evaluate(Evaluator& evaluator) const override;
};
struct Concatenation : Expression {
  Expressions parts;
  Value evaluate(Evaluator& evaluator) const override;
};
using Comparison = bool (*)(Evaluator&, const Value&, const Value&);
struct Comparisons : Expression {
  const Expression* first = nullptr;
  std::vector<std::pair<Comparison, const Expression*>> rest;
  Value evaluate(Evaluator& evaluator) const override;
};
struct Conditional : Expression {
  const Expression *test = nullptr, *then = nullptr, *otherwise = nullptr;  ///< otherwise may be null
  Value evaluate(Evaluator& evaluator) const override;
};
struct Attribute : Expression {
  const Expression* object = nullptr;
  std::string name;
  Value evaluate(Evaluator& evaluator) const override;
};
struct Item : Expression {
  const Expression *object = nullptr, *key = nullptr;
  Value evaluate(Evaluator& evaluator) const override;
};
struct Slice : Expression {
  const Expression *object = nullptr, *start = nullptr, *stop = nullptr, *step = nullptr;
  Value evaluate(Evaluator& evaluator) const override;
};
struct Call : Expression {
  const Expression* callee = nullptr;
  CallArguments arguments;
  Value evaluate(Evaluator& evaluator) const override;
};
struct Filtered : Expression {
  const Expression* input = nullptr;  ///< null: the text of the block
  std::string name;
  const FilterEntry* filter = nullptr;  ///< null: no filter has this name
  CallArguments arguments;
  Value evaluate(Evaluator& evaluator) const override;
};
struct Tested : Expression {
  const Expression* input = nullptr;
  std::string name;
  const TestEntry* test = nullptr;
  CallArguments arguments;
  Value evaluate(Evaluator& evaluator) const override;
};

/// A name, an attribute of a namespace, or several targets among which a sequence is divided.
struct Target {
  std::string name;
  std::string attribute;
  std::vector<Target> several;
  bool is_several = false;
};

struct Data : Statement {
  std::string text;
  Flow run(Evaluator& evaluator) const override;
};
struct Print : Statement {
  const Expression* value = nullptr;
  Flow run(Evaluator& evaluator) const override;
};
struct If : Statement {
  std::vector<std::pair<const Expression*, Body>> branches;
  Body otherwise;
  Flow run(Evaluator& evaluator) const override;
};
struct For : Statement {
  Target target;
  const Expression *items = nullptr, *condition = nullptr;  ///< condition may be null
  bool is_recursive = false;
  Body body, otherwise;
  Flow run(Evaluator& evaluator) const override;
  Flow run_over(Evaluator& evaluator, const Value& over, int64_t depth) const;
};
struct Set : Statement {
  Target target;
  const Expression* value = nullptr;
  Flow run(Evaluator& evaluator) const override;
};
struct SetBlock : Statement {
  Target target;
  const Expression* filter = nullptr;  ///< may be null
  Body body;
  Flow run(Evaluator& evaluator) const override;
};
struct MacroDefinition : Node {
  std::string name;
  std::vector<std::pair<std::string, const Expression*>> parameters;  ///< with defaults, which may be null
  Body body;
  bool takes_caller = false, takes_varargs = false, takes_kwargs = false;
};
struct Macro : Statement {
  MacroDefinition definition;
  Flow run(Evaluator& evaluator) const override;
};
struct CallBlock : Statement {
  MacroDefinition caller;
  const Call* call = nullptr;
  Flow run(Evaluator& evaluator) const override;
};
struct FilterBlock : Statement {
  const Expression* filter = nullptr;
  Body body;
  Flow run(Evaluator& evaluator) const override;
};
struct With : Statement {
  std::vector<std::pair<Target, const Expression*>> variables;
  Body body;
  Flow run(Evaluator& evaluator) const override;
};
struct Generation : Statement {
  Body body;
  Flow run(Evaluator& evaluator) const override;
};
struct LoopControl : Statement {
  Flow flow = Flow::leave_loop;
  Flow run(Evaluator&) const override { return flow; }
};

/// A parsed template.
struct Template {
  std::string name;
  Body body;
  bool has_generation = false;
  std::deque<std::unique_ptr<Node>> nodes;
};

}  // namespace llmtrain::jinja
