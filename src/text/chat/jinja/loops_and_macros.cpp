// Loops with the variable `loop`, and macros.

#include <fmt/format.h>

#include <algorithm>

#include "text/chat/jinja/evaluator.hpp"
#include "text/chat/jinja/operators.hpp"

namespace llmtrain::jinja {
namespace {

/// The variable `loop`.
class Loop : public Object, public std::enable_shared_from_this<Loop> {
 public:
  Loop(const ForLoop& statement, std::shared_ptr<const Sequence> items, int64_t level)
      : statement_(statement), items_(std::move(items)), level_(level) {}

  std::string type_name() const override { return "LoopContext"; }
  uint32_t depth() const override { return items_->depth + 1; }
  bool is_callable() const override { return statement_.is_recursive; }

  std::optional<Value> attribute(Evaluator&, std::string_view name) const override {
    const auto size = static_cast<int64_t>(items_->items.size());
    const std::pair<std::string_view, int64_t> numbers[] = {
        {"index", at + 1}, {"index0", at},        {"revindex", size - at}, {"revindex0", size - at - 1},
        {"length", size},  {"depth", level_ + 1}, {"depth0", level_}};
    for (const auto& [known, number] : numbers) {
      if (known == name) return Value(number);
    }
    if (name == "first") return Value(at == 0);
    if (name == "last") return Value(at + 1 == size);
    if (name == "previtem") return neighbour(at - 1, "there is no previous item");
    if (name == "nextitem") return neighbour(at + 1, "there is no next item");
    if (name == "changed") return Value(std::shared_ptr<Object>(std::make_shared<Changed>(*this)));
    if (name == "cycle") return Value(std::shared_ptr<Object>(std::make_shared<Cycle>(at)));
    return std::nullopt;
  }

  Value call(Evaluator& evaluator, const Arguments& arguments) override {
    if (!statement_.is_recursive) evaluator.fail("only the loop of a recursive for can be called");
    const Bound bound(evaluator, "loop", arguments, {"iterable"}, 1);
    Evaluator::Capture capture(evaluator);
    run_loop(evaluator, statement_, bound[0], level_ + 1);
    return evaluator.text(std::move(capture.text));
  }

  /// Ends the memory of loop.changed, whose values may hold the loop.
  void finish() {
    is_finished_ = true;
    last_changed_.reset();
  }

  int64_t at = 0;

 private:
  class Changed : public Object {
   public:
    explicit Changed(const Loop& loop) : loop_(loop.weak_from_this()) {}
    std::string type_name() const override { return "method"; }
    bool is_callable() const override { return true; }
    Value call(Evaluator& evaluator, const Arguments& arguments) override {
      const std::shared_ptr<const Loop> loop = loop_.lock();
      if (loop == nullptr || loop->is_finished_ || !arguments.named.empty()) {
        evaluator.fail("loop.changed takes values without names, inside of its loop");
      }
      const std::vector<Value>& now = arguments.positional;
      const auto same = [&](const Value& a, const Value& b) { return is_equal(evaluator, a, b); };
      if (loop->last_changed_ && std::ranges::equal(*loop->last_changed_, now, same)) return Value(false);
      loop->last_changed_ = now;
      return Value(true);
    }

   private:
    std::weak_ptr<const Loop> loop_;
  };

  /// loop.cycle at one place of the loop.
  class Cycle : public Object {
   public:
    explicit Cycle(int64_t place) : place_(place) {}
    std::string type_name() const override { return "method"; }
    bool is_callable() const override { return true; }
    Value call(Evaluator& evaluator, const Arguments& arguments) override {
      if (arguments.positional.empty()) evaluator.fail("loop.cycle needs something to cycle");
      return arguments.positional[static_cast<size_t>(place_) % arguments.positional.size()];
    }

   private:
    int64_t place_;
  };

  Value neighbour(int64_t place, const char* description) const {
    if (place < 0 || place >= static_cast<int64_t>(items_->items.size())) return Value::undefined(description);
    return items_->items[static_cast<size_t>(place)];
  }

  const ForLoop& statement_;
  std::shared_ptr<const Sequence> items_;
  int64_t level_;
  bool is_finished_ = false;
  mutable std::optional<std::vector<Value>> last_changed_;  // arguments of the last call of changed that differed
};

class MacroObject : public Object {
 public:
  MacroObject(const MacroDefinition& definition, std::shared_ptr<Scope> scope)
      : definition_(definition), scope_(std::move(scope)) {}
  std::string type_name() const override { return "Macro"; }
  bool is_callable() const override { return true; }
  std::optional<Value> attribute(Evaluator& evaluator, std::string_view name) const override {
    if (name == "name") return definition_.name.empty() ? Value(None{}) : Value::text(definition_.name);
    if (name == "catch_kwargs") return Value(definition_.takes_kwargs);
    if (name == "catch_varargs") return Value(definition_.takes_varargs);
    if (name == "caller") return Value(definition_.takes_caller);
    if (name == "explicit_caller") return Value(has_caller_parameter());
    if (name != "arguments") return std::nullopt;
    std::vector<Value> names;
    names.reserve(definition_.parameters.size());
    for (const auto& parameter : definition_.parameters) names.push_back(Value::text(parameter.first));
    return evaluator.list(std::move(names), SequenceKind::tuple);
  }

  Value call(Evaluator& evaluator, const Arguments& arguments) override {
    const Evaluator::Inner inner(evaluator, scope_);
    bind(evaluator, arguments);
    Evaluator::Capture capture(evaluator);
    evaluator.run(definition_.body);
    return evaluator.text(std::move(capture.text));
  }

 private:
  bool has_caller_parameter() const {
    return std::ranges::any_of(definition_.parameters, [](const auto& entry) { return entry.first == "caller"; });
  }

  void bind(Evaluator& evaluator, const Arguments& arguments) const {
    const auto& parameters = definition_.parameters;
    std::vector<std::pair<std::string, Value>> named = arguments.named;
    const auto take_named = [&](std::string_view name) -> std::optional<Value> {
      const auto found = std::ranges::find_if(named, [&](const auto& entry) { return entry.first == name; });
      if (found == named.end()) return std::nullopt;
      Value value = found->second;
      named.erase(found);
      return value;
    };
    std::vector<std::optional<Value>> given(parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) {
      given[i] = i < arguments.positional.size() ? arguments.positional[i] : take_named(parameters[i].first);
    }
    if (definition_.takes_caller && !has_caller_parameter()) {
      evaluator.assign("caller", take_named("caller").value_or(Value::undefined("No caller defined")));
    }
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto& [name, standard] = parameters[i];
      if (!given[i]) {
        given[i] = standard != nullptr ? evaluator.evaluate(*standard)
                                       : Value::undefined(fmt::format("parameter '{}' was not provided", name));
      }
      evaluator.assign(name, *given[i]);
    }
    bind_rest(evaluator, arguments, std::move(named));
  }

  void bind_rest(Evaluator& evaluator, const Arguments& arguments,
                 std::vector<std::pair<std::string, Value>> named) const {
    const size_t expected = definition_.parameters.size();
    if (definition_.takes_kwargs) {
      std::vector<std::pair<Value, Value>> entries;
      entries.reserve(named.size());
      for (auto& [name, value] : named) entries.emplace_back(Value::text(name), std::move(value));
      evaluator.assign("kwargs", evaluator.dict(std::move(entries)));
    } else if (!named.empty()) {
      evaluator.fail(fmt::format("macro '{}' takes no keyword argument '{}'", definition_.name, named.front().first));
    }
    if (definition_.takes_varargs) {
      std::vector<Value> rest;
      for (size_t i = expected; i < arguments.positional.size(); ++i) rest.push_back(arguments.positional[i]);
      evaluator.assign("varargs", evaluator.list(std::move(rest), SequenceKind::tuple));
    } else if (arguments.positional.size() > expected) {
      evaluator.fail(fmt::format("macro '{}' takes not more than {} arguments", definition_.name, expected));
    }
  }

  const MacroDefinition& definition_;
  std::shared_ptr<Scope> scope_;
};

}  // namespace

Flow run_loop(Evaluator& evaluator, const ForLoop& loop, const Value& over, int64_t depth) {
  std::shared_ptr<const Sequence> sequence = evaluator.items(over);
  if (loop.condition != nullptr) {
    std::vector<Value> chosen;
    for (const Value& item : sequence->items) {
      const Evaluator::Inner inner(evaluator);
      evaluator.assign(loop.target, item);
      if (evaluator.evaluate(*loop.condition).truth()) chosen.push_back(item);
    }
    sequence = evaluator.list(std::move(chosen)).shared<const Sequence>();
  }
  const auto variable = std::make_shared<Loop>(loop, sequence, depth);
  if (variable->depth() > max_value_depth) evaluator.fail("loops are nested too deeply in values");
  struct Finish {
    ~Finish() { loop.finish(); }
    Loop& loop;
  } const finish{*variable};
  bool is_completed = false;  // Jinja runs `else` unless one item reached the end of the body
  for (const Value& item : sequence->items) {
    const Evaluator::Inner inner(evaluator);
    evaluator.charge(1);
    evaluator.assign("loop", Value(std::shared_ptr<Object>(variable)));
    evaluator.assign(loop.target, item);
    const Flow flow = evaluator.run(loop.body);
    if (flow == Flow::leave_loop) break;
    is_completed = is_completed || flow == Flow::next;
    ++variable->at;
  }
  if (is_completed) return Flow::next;
  const Evaluator::Inner inner(evaluator);
  return evaluator.run(loop.otherwise);
}

Value make_macro(Evaluator& evaluator, const MacroDefinition& definition) {
  evaluator.keep(evaluator.scope());
  return std::shared_ptr<Object>(std::make_shared<MacroObject>(definition, evaluator.scope()));
}

}  // namespace llmtrain::jinja
