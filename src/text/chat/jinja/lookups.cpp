// A template finds global functions, keys of dicts, attributes and items of values here.

#include <fmt/format.h>

#include <algorithm>

#include "text/chat/jinja/builtins.hpp"
#include "text/chat/jinja/evaluator.hpp"
#include "text/chat/jinja/lexer.hpp"
#include "text/chat/jinja/operators.hpp"
#include "text/chat/jinja/python_text.hpp"

namespace llmtrain::jinja {

MarkedText Evaluator::render(const std::vector<std::pair<std::string, Value>>& variables) {
  scope_ = std::make_shared<Scope>();
  for (const auto& [name, value] : global_functions()) scope_->variables.emplace_back(name, value);
  for (const auto& [name, value] : variables) assign(name, value);
  const Inner root(*this);
  Capture capture(*this);
  run(template_.body);
  return std::move(capture.text);
}

void Evaluator::fail(std::string_view message) const { fail_at(template_.name, line_, message); }

Value Evaluator::dict(std::vector<std::pair<Value, Value>>&& entries) {
  auto dict = std::make_shared<Dict>();
  for (auto& [key, value] : entries) {
    dict->depth = std::max({dict->depth, key.depth() + 1, value.depth() + 1});
    if (dict->depth > max_value_depth) fail("dicts are nested too deeply");
    require_hashable(key);
    charge(1 + static_cast<int64_t>(dict->entries.size() / 16));
    const auto known = std::ranges::find_if(
        dict->entries, [&, &key = key](const auto& entry) { return is_equal(*this, entry.first, key); });
    if (known != dict->entries.end()) {
      known->second = std::move(value);
    } else {
      dict->entries.emplace_back(std::move(key), std::move(value));
    }
  }
  return std::shared_ptr<const Dict>(std::move(dict));
}

Value Evaluator::attribute(const Value& object, std::string_view name) {
  require_defined(object);
  if (object.as_object() != nullptr) {
    if (std::optional<Value> found = object.as_object()->attribute(*this, name)) return *found;
  }
  if (std::optional<Value> method = find_method(*this, object, name)) return *method;
  if (const Dict* dict = object.as_dict()) {
    charge(static_cast<int64_t>(dict->entries.size() / 16));
    if (const Value* found = dict->find(name)) return *found;
  }
  charge(static_cast<int64_t>(name.size() / 32));
  return Value::undefined(fmt::format("'{} object' has no attribute '{}'", object.type_name(), name));
}

Value Evaluator::item(const Value& object, const Value& key) {
  require_defined(object);
  const std::optional<int64_t> index = key.integer();
  if (const Dict* dict = object.as_dict()) {
    charge(static_cast<int64_t>(dict->entries.size() / 16));
    for (const auto& [known, value] : dict->entries) {
      if (is_equal(*this, known, key)) return value;
    }
  } else if (const Sequence* sequence = object.as_sequence();
             sequence != nullptr && index && sequence->kind < SequenceKind::keys) {
    const auto size = static_cast<int64_t>(sequence->items.size());
    const int64_t place = *index < 0 ? *index + size : *index;
    if (place >= 0 && place < size) return sequence->items[static_cast<size_t>(place)];
  } else if (object.as_text() != nullptr && index) {
    return character_of(*this, *object.as_text(), *index);
  } else if (object.as_object() != nullptr && key.as_text() != nullptr) {
    if (std::optional<Value> found = object.as_object()->attribute(*this, key.as_text()->bytes())) return *found;
  }
  if (const MarkedText* name = key.as_text()) {
    if (std::optional<Value> method = find_method(*this, object, name->bytes())) return *method;
    charge(static_cast<int64_t>(name->size() / 32));
    return Value::undefined(fmt::format("'{} object' has no attribute '{}'", object.type_name(), name->bytes()));
  }
  return Value::undefined(fmt::format("the {} has no such element", object.type_name()));
}

Value Object::call(Evaluator& evaluator, const Arguments&) { evaluator.fail("a " + type_name() + " cannot be called"); }

}  // namespace llmtrain::jinja
