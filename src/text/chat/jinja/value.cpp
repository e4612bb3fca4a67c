#include "text/chat/jinja/value.hpp"

#include "text/chat/jinja/evaluator.hpp"

namespace llmtrain::jinja {

std::optional<int64_t> Value::integer() const {
  if (as_int() != nullptr) return *as_int();
  if (as_bool() != nullptr) return *as_bool() ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (as_float() != nullptr) return *as_float();
  const std::optional<int64_t> whole = integer();
  return whole ? std::optional<double>(static_cast<double>(*whole)) : std::nullopt;
}

bool Value::truth() const {
  if (const std::optional<double> n = number()) return *n != 0;
  if (as_text() != nullptr) return as_text()->size() > 0;
  if (as_dict() != nullptr) return !as_dict()->entries.empty();
  if (const Sequence* items = as_sequence()) return items->kind == SequenceKind::generator || !items->items.empty();
  return as_object() != nullptr;
}

uint32_t Value::depth() const {
  if (as_sequence() != nullptr) return as_sequence()->depth;
  if (as_dict() != nullptr) return as_dict()->depth;
  return as_object() != nullptr ? as_object()->depth() : 0;
}

std::string Value::type_name() const {
  static constexpr const char* names[] = {"undefined", "NoneType", "bool", "int", "float", "str", "list", "dict"};
  static constexpr const char* kinds[] = {"list",        "tuple",      "range",    "dict_keys",
                                          "dict_values", "dict_items", "generator"};
  if (as_object() != nullptr) return as_object()->type_name();
  if (as_sequence() != nullptr) return kinds[static_cast<size_t>(as_sequence()->kind)];
  return names[data_.index()];
}

const std::string& Value::undefined_description() const {
  static const std::string unnamed = "the value is undefined";
  const auto& description = std::get<Undefined>(data_).description;
  return description == nullptr ? unnamed : *description;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    const MarkedText* text = name.as_text();
    if (text != nullptr && text->bytes() == key) return &value;
  }
  return nullptr;
}

Value Object::call(Evaluator& evaluator, const Arguments&) { evaluator.fail("a " + type_name() + " cannot be called"); }

}  // namespace llmtrain::jinja
