#include "text/chat/jinja/evaluator.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "text/unicode/code_points.hpp"

namespace llmtrain::jinja {

class Evaluator::Depth {
 public:
  explicit Depth(Evaluator& evaluator) : evaluator_(evaluator) {
    if (++evaluator_.depth_ > evaluator_.limits_.depth) {
      evaluator_.fail(fmt::format("the template nests calls and blocks more than {} deep", evaluator_.limits_.depth));
    }
  }
  ~Depth() { --evaluator_.depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  Evaluator& evaluator_;
};

Evaluator::Evaluator(const Template& program, const Limits& limits) : template_(program), limits_(limits) {}

Evaluator::~Evaluator() {
  for (const auto& scope : kept_scopes_) scope->variables.clear();
  for (const auto& object : kept_namespaces_) object->attributes.clear();
}

void Evaluator::fail_steps() const {
  fail(fmt::format("the template takes more than {} steps: it loops or grows without end", limits_.steps));
}

Value Evaluator::evaluate(const Expression& expression) {
  const Depth depth(*this);
  line_ = expression.line;
  charge(1);
  return expression.run(*this);
}

std::vector<Value> Evaluator::evaluate(const Expressions& expressions) {
  std::vector<Value> values;
  values.reserve(expressions.size());
  for (const Expression* expression : expressions) values.push_back(evaluate(*expression));
  return values;
}

Flow Evaluator::run(const Body& body) {
  for (const Statement* statement : body) {
    const Depth depth(*this);
    line_ = statement->line;
    charge(1);
    const Flow flow = statement->run(*this);
    if (flow != Flow::next) return flow;
  }
  return Flow::next;
}

Value Evaluator::find(const std::string& name) {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    charge(static_cast<int64_t>(scope->variables.size() / 32));
    for (const auto& [known, value] : scope->variables) {
      if (known == name) return value;
    }
  }
  charge(static_cast<int64_t>(name.size() / 32));
  return Value::undefined("'" + name + "' is undefined");
}

void Evaluator::assign(std::string_view name, Value value) {
  charge(static_cast<int64_t>(scope_->variables.size() / 32));
  for (auto& [known, old] : scope_->variables) {
    if (known != name) continue;
    old = std::move(value);
    return;
  }
  scope_->variables.emplace_back(name, std::move(value));
}

void Evaluator::assign_attribute(const Target& target, const Value& value) {
  const Value object = find(target.name);
  auto* space = dynamic_cast<Namespace*>(object.as_object());
  if (space == nullptr) fail(fmt::format("'{}' is not a namespace, so its attributes cannot be set", target.name));
  space->set(*this, target.attribute, value);
}

void Evaluator::assign(const Target& target, const Value& value) {
  if (!target.is_several) {
    if (target.attribute.empty()) return assign(target.name, value);
    return assign_attribute(target, value);
  }
  const std::shared_ptr<const Sequence> parts = items(value);
  if (parts->items.size() != target.several.size()) {
    fail(fmt::format("{} values cannot be assigned to {} names", parts->items.size(), target.several.size()));
  }
  for (size_t i = 0; i < parts->items.size(); ++i) assign(target.several[i], parts->items[i]);
}

void Evaluator::keep(std::shared_ptr<Scope> scope) {
  charge(10);
  kept_scopes_.push_back(std::move(scope));
}
void Evaluator::keep(std::shared_ptr<Namespace> object) {
  charge(10);
  kept_namespaces_.push_back(std::move(object));
}

void Evaluator::print(const MarkedText& text) {
  check_text(output_->size() + text.size());
  charge(static_cast<int64_t>(text.size() / 32));
  output_->append(text);
}
void Evaluator::print(std::string_view text) {
  check_text(output_->size() + text.size());
  charge(static_cast<int64_t>(text.size() / 32));
  output_->append(text);
}

void Evaluator::check_text(size_t bytes) {
  if (bytes > static_cast<size_t>(limits_.text_bytes)) {
    fail(fmt::format("the template makes a text of more than {} bytes", limits_.text_bytes));
  }
}

Value Evaluator::text(MarkedText text) {
  check_text(text.size());
  charge(static_cast<int64_t>(text.size() / 32));
  return text;
}

Value Evaluator::list(std::vector<Value> items, SequenceKind kind) {
  auto sequence = std::make_shared<Sequence>();
  sequence->kind = kind;
  for (const Value& item : items) sequence->depth = std::max(sequence->depth, item.depth() + 1);
  if (sequence->depth > max_value_depth) fail("lists are nested too deeply");
  charge(static_cast<int64_t>(items.size()));
  sequence->items = std::move(items);
  return std::shared_ptr<const Sequence>(std::move(sequence));
}

std::shared_ptr<const Sequence> Evaluator::items(const Value& value) {
  if (const Sequence* sequence = value.as_sequence()) {
    charge(static_cast<int64_t>(sequence->items.size()));
    if (sequence->kind != SequenceKind::generator) return value.shared<const Sequence>();
    if (sequence->consumed) return std::make_shared<const Sequence>();
    sequence->consumed = true;
    return value.shared<const Sequence>();
  }
  std::vector<Value> found;
  if (const MarkedText* text = value.as_text()) {
    for (size_t i = 0; i < text->size();) {
      const size_t begin = i;
      next_code_point(text->bytes(), i);
      charge(2);
      found.emplace_back(text->slice(begin, i));
    }
  } else if (const Dict* dict = value.as_dict()) {
    for (const auto& entry : dict->entries) found.push_back(entry.first);
  } else if (!value.is_undefined()) {
    fail(fmt::format("a {} cannot be iterated over", value.type_name()));
  }
  return list(std::move(found)).shared<const Sequence>();
}

void Evaluator::require_defined(const Value& value) const {
  if (value.is_undefined()) fail(value.undefined_description());
}

void Evaluator::require_hashable(const Value& value) {
  charge(1);
  const Sequence* items = value.as_sequence();
  if (value.as_dict() != nullptr || (items != nullptr && items->kind == SequenceKind::list)) {
    fail(fmt::format("a {} cannot be the key of a dict or be compared by a filter", value.type_name()));
  }
  if (items == nullptr || items->kind != SequenceKind::tuple) return;
  for (const Value& item : items->items) require_hashable(item);
}

Value Evaluator::call(const Value& callee, const Arguments& arguments) {
  require_defined(callee);
  const Depth depth(*this);
  if (callee.as_object() == nullptr) fail(fmt::format("a {} cannot be called", callee.type_name()));
  const int line = line_;
  const std::shared_ptr<Object> object = callee.shared<Object>();  // the call may replace the variable that holds it
  Value result = object->call(*this, arguments);
  line_ = line;
  return result;
}

Arguments Evaluator::arguments(const CallArguments& arguments) {
  Arguments values;
  values.positional = evaluate(arguments.positional);
  for (const auto& [name, value] : arguments.named) values.named.emplace_back(name, evaluate(*value));
  if (arguments.star != nullptr) {
    const std::shared_ptr<const Sequence> more = items(evaluate(*arguments.star));
    values.positional.insert(values.positional.end(), more->items.begin(), more->items.end());
  }
  if (arguments.double_star != nullptr) {
    const Value more = evaluate(*arguments.double_star);
    if (more.as_dict() == nullptr) fail("the argument after ** must be a dict");
    for (const auto& [name, value] : more.as_dict()->entries) {
      if (name.as_text() == nullptr) fail("the keys of the argument after ** must be str");
      charge(1 + static_cast<int64_t>(name.as_text()->size() / 32));
      values.named.emplace_back(name.as_text()->bytes(), value);
    }
  }
  for (size_t i = 0; i < values.named.size(); ++i) {
    for (size_t k = 0; k < i; ++k) {
      if (values.named[i].first == values.named[k].first) {
        fail(fmt::format("the argument '{}' is given twice", values.named[i].first));
      }
    }
    charge(static_cast<int64_t>(i / 16));
  }
  return values;
}

std::optional<Value> Namespace::attribute(Evaluator& evaluator, std::string_view name) const {
  evaluator.charge(static_cast<int64_t>(attributes.size() / 16));
  for (const auto& [known, value] : attributes) {
    if (known == name) return value;
  }
  return std::nullopt;
}

void Namespace::set(Evaluator& evaluator, std::string_view name, Value value) {
  evaluator.charge(static_cast<int64_t>(attributes.size() / 16));
  if (name.starts_with("_"))
    evaluator.fail(fmt::format("the attribute '{}' of a namespace begins with an underscore", name));
  for (auto& [known, old] : attributes) {
    if (known != name) continue;
    old = std::move(value);
    return;
  }
  attributes.emplace_back(name, std::move(value));
}

Bound::Bound(Evaluator& evaluator, std::string_view what, const Arguments& arguments,
             std::initializer_list<std::string_view> names, size_t required)
    : evaluator_(evaluator), what_(what), values_(names.size()) {
  if (arguments.positional.size() > names.size()) {
    evaluator.fail(fmt::format("{} takes at most {} arguments", what, names.size()));
  }
  std::copy(arguments.positional.begin(), arguments.positional.end(), values_.begin());
  for (const auto& [name, value] : arguments.named) {
    const auto* const found = std::ranges::find(names, name);
    if (found == names.end()) evaluator.fail(fmt::format("{} takes no argument '{}'", what, name));
    std::optional<Value>& place = values_[static_cast<size_t>(found - names.begin())];
    if (place) evaluator.fail(fmt::format("{} takes the argument '{}' once", what, name));
    place = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!values_[i]) evaluator.fail(fmt::format("{} needs the argument '{}'", what, names.begin()[i]));
  }
}

int64_t Bound::integer(size_t i, int64_t otherwise) const {
  if (!has(i)) return otherwise;
  const std::optional<int64_t> number = values_[i]->integer();
  if (!number) evaluator_.fail(fmt::format("{} needs an integer, not a {}", what_, values_[i]->type_name()));
  return *number;
}

const MarkedText& Bound::text(size_t i) const {
  const MarkedText* text = has(i) ? values_[i]->as_text() : nullptr;
  if (text == nullptr) {
    evaluator_.fail(fmt::format("{} needs a str, not a {}", what_, has(i) ? values_[i]->type_name() : "missing value"));
  }
  return *text;
}

}  // namespace llmtrain::jinja
