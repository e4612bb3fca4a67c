#include "core/files/json_node.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"

namespace llmtrain {

std::string JsonNode::child(std::string_view key) const {
  return where_.empty() ? std::string(key.substr(0, 60)) : fmt::format("{}.{}", where_, key.substr(0, 60));
}

bool JsonNode::has(std::string_view key) const {
  const auto found = object().value_->find(key);
  return found != value_->end() && !found->is_null();
}

JsonNode JsonNode::at(std::string_view key) const {
  const auto found = object().value_->find(key);
  if (found == value_->end()) JsonNode(*value_, child(key)).refuse("is missing");
  return {*found, child(key)};
}

JsonNode JsonNode::at(size_t index) const {
  if (index >= array().size()) refuse(fmt::format("has no item {}", index));
  return {(*value_)[index], fmt::format("{}[{}]", where_, index)};
}

const std::string& JsonNode::text() const {
  if (!value_->is_string()) refuse_value("a text");
  return value_->get_ref<const std::string&>();
}

bool JsonNode::boolean() const {
  if (!value_->is_boolean()) refuse_value("true or false");
  return value_->get<bool>();
}

int64_t JsonNode::integer(int64_t least, int64_t most) const {
  const bool fits = value_->is_number_unsigned() ? value_->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)
                                                 : value_->is_number_integer();
  const int64_t number = fits ? value_->get<int64_t>() : 0;
  if (!fits || number < least || number > most) refuse_value(fmt::format("an integer from {} to {}", least, most));
  return number;
}

double JsonNode::number() const {
  if (!value_->is_number()) refuse_value("a number");
  return value_->get<double>();
}

const JsonNode& JsonNode::object() const {
  if (!value_->is_object()) refuse("must be an object");
  return *this;
}

const JsonNode& JsonNode::array() const {
  if (!value_->is_array()) refuse("must be a list");
  return *this;
}

std::string JsonNode::text_or(std::string_view key, const std::string& otherwise) const {
  return has(key) ? at(key).text() : otherwise;
}

bool JsonNode::boolean_or(std::string_view key, bool otherwise) const {
  return has(key) ? at(key).boolean() : otherwise;
}

void JsonNode::check_keys(std::initializer_list<std::string_view> keys,
                          std::initializer_list<std::string_view> optional) const {
  for (const std::string_view key : keys) at(key);
  const auto names = [](std::initializer_list<std::string_view> list, std::string_view key) {
    return std::ranges::find(list, key) != list.end();
  };
  for (const auto& [key, value] : object().value_->items()) {
    if (names(keys, key) || names(optional, key)) continue;
    refuse(fmt::format("the key {} is not known to this version", key.substr(0, 60)));
  }
}

void JsonNode::refuse(const std::string& what) const {
  throw UserError(ExitCode::bad_content, fmt::format("{}: {}", where_, what));
}

void JsonNode::refuse_value(std::string_view expected) const {
  refuse(fmt::format("must be {}, not {}", expected, printable_value(*value_)));
}

}  // namespace llmtrain
