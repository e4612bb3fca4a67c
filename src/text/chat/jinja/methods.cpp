#include <fmt/format.h>

#include <algorithm>

#include "core/find_entry.hpp"
#include "text/chat/jinja/builtins.hpp"
#include "text/chat/jinja/operators.hpp"

namespace llmtrain::jinja {
namespace container_methods {
namespace {

using Args = const Arguments&;

class BoundMethod : public Object {
 public:
  BoundMethod(Value object, const NamedFunction& method) : object_(std::move(object)), method_(method) {}
  std::string type_name() const override { return "method"; }
  bool is_callable() const override { return true; }
  uint32_t depth() const override { return object_.depth() + 1; }
  Value call(Evaluator& evaluator, const Arguments& arguments) override {
    if (object_.as_text() != nullptr) evaluator.charge(static_cast<int64_t>(object_.as_text()->size() / 32));
    return method_.run(evaluator, object_, arguments);
  }

 private:
  Value object_;
  const NamedFunction& method_;
};

Value get(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, "get", arguments, {"key", "default"}, 1);
  evaluator.require_hashable(bound[0]);
  evaluator.charge(static_cast<int64_t>(object.as_dict()->entries.size() / 16));
  for (const auto& [key, value] : object.as_dict()->entries) {
    if (is_equal(evaluator, key, bound[0])) return value;
  }
  return bound.has(1) ? bound[1] : Value(None{});
}

template <SequenceKind kind>
Value view(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, "the method", arguments, {});
  std::vector<Value> found;
  for (const auto& [key, value] : object.as_dict()->entries) {
    if (kind == SequenceKind::items) {
      found.push_back(evaluator.list({key, value}, SequenceKind::tuple));
    } else {
      found.push_back(kind == SequenceKind::keys ? key : value);
    }
  }
  return evaluator.list(std::move(found), kind);
}

Value copy(Evaluator&, const Value& object, Args) { return object; }

Value count(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, "count", arguments, {"value"}, 1);
  int64_t found = 0;
  for (const Value& item : object.as_sequence()->items) found += is_equal(evaluator, item, bound[0]) ? 1 : 0;
  return found;
}

Value index(Evaluator& evaluator, const Value& object, Args arguments) {
  const Bound bound(evaluator, "index", arguments, {"value"}, 1);
  const std::vector<Value>& items = object.as_sequence()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    if (is_equal(evaluator, items[i], bound[0])) return static_cast<int64_t>(i);
  }
  evaluator.fail("the value is not in the list");
}

constexpr NamedFunction dict_methods[] = {{"copy", copy},
                                          {"get", get},
                                          {"items", view<SequenceKind::items>},
                                          {"keys", view<SequenceKind::keys>},
                                          {"values", view<SequenceKind::values>}};
constexpr NamedFunction list_methods[] = {{"copy", copy}, {"count", count}, {"index", index}};
constexpr NamedFunction tuple_methods[] = {{"count", count}, {"index", index}};
constexpr std::string_view dict_changes[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view list_changes[] = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};

template <size_t n>
void refuse_change(Evaluator& evaluator, const std::string_view (&names)[n], std::string_view name) {
  if (std::find(std::begin(names), std::end(names), name) != std::end(names)) {
    evaluator.fail(fmt::format("the method '{}' would change a value of the conversation", name));
  }
}

}  // namespace
}  // namespace container_methods

std::optional<Value> find_method(Evaluator& evaluator, const Value& object, std::string_view name) {
  using namespace container_methods;
  const NamedFunction* method = nullptr;
  if (object.as_text() != nullptr) {
    method = find_text_method(evaluator, name);
  } else if (object.as_dict() != nullptr) {
    refuse_change(evaluator, dict_changes, name);
    method = find_entry(dict_methods, name, &NamedFunction::name);
  } else if (const Sequence* items = object.as_sequence()) {
    if (items->kind == SequenceKind::list) refuse_change(evaluator, list_changes, name);
    method = items->kind == SequenceKind::list    ? find_entry(list_methods, name, &NamedFunction::name)
             : items->kind == SequenceKind::tuple ? find_entry(tuple_methods, name, &NamedFunction::name)
                                                  : nullptr;
  }
  if (method == nullptr) return std::nullopt;
  if (object.depth() + 1 > max_value_depth) evaluator.fail("values are nested too deeply");
  return Value(std::shared_ptr<Object>(std::make_shared<BoundMethod>(object, *method)));
}

}  // namespace llmtrain::jinja
