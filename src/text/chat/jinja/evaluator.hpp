#pragma once
// Runs a parsed template. A template is hostile input: steps, depth and sizes are limited, whatever it does.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/chat/jinja/template.hpp"
#include "text/chat/jinja/value.hpp"

namespace llmtrain::jinja {

struct Limits {
  int64_t steps = 10'000'000;             ///< evaluated nodes, list elements and 32 bytes of text each count one
  int64_t depth = 1000;                   ///< nested evaluations
  int64_t text_bytes = int64_t{1} << 24;  ///< of one text, and of the output
};

inline constexpr uint32_t max_value_depth = 100;  ///< nested lists and dicts
inline constexpr int64_t max_range_items = 100'000;

/// Variables of a block, and the scope around it.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string_view, Value>> variables;  ///< names belong to the template or the caller
};

class Namespace;

class Evaluator {
 public:
  Evaluator(const Template& program, const Limits& limits);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  /// Renders the template once. UserError(bad_content) "name:line: message".
  MarkedText render(const std::vector<std::pair<std::string, Value>>& variables);
  int64_t now = -1;    ///< seconds since 1970 for strftime_now, in UTC; -1: the clock, in local time
  int64_t blocks = 0;  ///< generation blocks that have run

  // Running.
  Value evaluate(const Expression& expression);
  std::vector<Value> evaluate(const Expressions& expressions);
  Flow run(const Body& body);
  [[noreturn]] void fail(std::string_view message) const;
  void charge(int64_t steps) {
    if ((steps_ += steps) > limits_.steps) fail_steps();
  }

  // Variables.
  Value find(const std::string& name);
  void assign(std::string_view name, Value value);
  void assign(const Target& target, const Value& value);
  /// Opens a scope inside the present one, or inside `parent`.
  class Inner;
  const std::shared_ptr<Scope>& scope() const { return scope_; }
  void keep(std::shared_ptr<Scope> scope);
  void keep(std::shared_ptr<Namespace> object);

  // Output.
  void print(const MarkedText& text);
  void print(std::string_view text);
  /// Redirects the output into a text of its own.
  class Capture;
  Value take_captured() const { return captured_.back(); }
  void push_captured(Value value) { captured_.push_back(std::move(value)); }
  void pop_captured() { captured_.pop_back(); }

  // Making values within the limits.
  Value text(MarkedText text);
  Value text(std::string bytes, Marks marks = 0) { return text(MarkedText(std::move(bytes), marks)); }
  Value list(std::vector<Value> items, SequenceKind kind = SequenceKind::list);
  Value dict(std::vector<std::pair<Value, Value>>&& entries);  ///< of equal keys the last one's value counts
  void check_text(size_t bytes);                               ///< before a text of this size is made

  // Using values.
  std::shared_ptr<const Sequence> items(const Value& value);  ///< what a loop over the value gives
  Value attribute(const Value& object, std::string_view name);
  Value item(const Value& object, const Value& key);
  Value call(const Value& callee, const Arguments& arguments);
  Arguments arguments(const CallArguments& arguments);
  void require_defined(const Value& value) const;
  void require_hashable(const Value& value);  ///< as keys of dicts are

 private:
  class Depth;
  [[noreturn]] void fail_steps() const;
  void assign_attribute(const Target& target, const Value& value);

  const Template& template_;
  const Limits limits_;
  int64_t steps_ = 0, depth_ = 0;
  int line_ = 1;
  std::shared_ptr<Scope> scope_;
  MarkedText* output_ = nullptr;
  std::vector<Value> captured_;
  std::vector<std::shared_ptr<Scope>> kept_scopes_;          // a macro and its scope refer to each other
  std::vector<std::shared_ptr<Namespace>> kept_namespaces_;  // so do namespaces
};

class Evaluator::Inner {
 public:
  explicit Inner(Evaluator& evaluator) : Inner(evaluator, evaluator.scope_) {}
  Inner(Evaluator& evaluator, std::shared_ptr<Scope> parent) : evaluator_(evaluator), outer_(evaluator.scope_) {
    evaluator_.scope_ = std::make_shared<Scope>(Scope{std::move(parent), {}});
  }
  ~Inner() { evaluator_.scope_ = outer_; }
  Inner(const Inner&) = delete;
  Inner& operator=(const Inner&) = delete;

 private:
  Evaluator& evaluator_;
  std::shared_ptr<Scope> outer_;
};

class Evaluator::Capture {
 public:
  explicit Capture(Evaluator& evaluator) : evaluator_(evaluator), outer_(evaluator.output_) {
    evaluator_.output_ = &text;
  }
  ~Capture() { evaluator_.output_ = outer_; }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  MarkedText text;

 private:
  Evaluator& evaluator_;
  MarkedText* outer_;
};

/// The object of namespace(): the only value that changes.
class Namespace : public Object {
 public:
  std::string type_name() const override { return "Namespace"; }
  std::optional<Value> attribute(Evaluator& evaluator, std::string_view name) const override;
  void set(Evaluator& evaluator, std::string_view name, Value value);
  std::vector<std::pair<std::string, Value>> attributes;
};

/// Arguments by position or name, as Python binds them: one entry a name, empty where the call gives none.
class Bound {
 public:
  /// `what` is for messages. Fails if an argument is unknown, given twice, or one of the first `required` is missing.
  Bound(Evaluator& evaluator, std::string_view what, const Arguments& arguments,
        std::initializer_list<std::string_view> names, size_t required = 0);
  bool has(size_t i) const { return values_[i].has_value(); }
  const Value& operator[](size_t i) const { return *values_[i]; }
  bool truth(size_t i, bool otherwise) const { return has(i) ? values_[i]->truth() : otherwise; }
  int64_t integer(size_t i, int64_t otherwise) const;  ///< fails if it is not an integer
  const MarkedText& text(size_t i) const;              ///< fails if it is not a str
  bool is_given(size_t i) const { return has(i) && !values_[i]->is_none(); }

 private:
  Evaluator& evaluator_;
  std::string what_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace llmtrain::jinja
