#include "core/files/json_node.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"

namespace llmtrain {

template <class Json>
std::string BasicJsonNode<Json>::child(std::string_view key) const {
  return where_.empty() ? std::string(key.substr(0, 60)) : fmt::format("{}.{}", where_, key.substr(0, 60));
}

template <class Json>
bool BasicJsonNode<Json>::has(std::string_view key) const {
  const auto found = object().value_->find(key);
  return found != value_->end() && !found->is_null();
}

template <class Json>
BasicJsonNode<Json> BasicJsonNode<Json>::at(std::string_view key) const {
  const auto found = object().value_->find(key);
  if (found == value_->end()) BasicJsonNode(*value_, child(key)).refuse("is missing");
  return {*found, child(key)};
}

template <class Json>
BasicJsonNode<Json> BasicJsonNode<Json>::at(size_t index) const {
  if (index >= array().size()) refuse(fmt::format("has no item {}", index));
  return {(*value_)[index], fmt::format("{}[{}]", where_, index)};
}

template <class Json>
const std::string& BasicJsonNode<Json>::text() const {
  if (!value_->is_string()) refuse_value("a text");
  return value_->template get_ref<const std::string&>();
}

template <class Json>
bool BasicJsonNode<Json>::boolean() const {
  if (!value_->is_boolean()) refuse_value("true or false");
  return value_->template get<bool>();
}

template <class Json>
int64_t BasicJsonNode<Json>::integer_between(int64_t min, int64_t max) const {
  const bool fits = value_->is_number_unsigned() ? value_->template get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX)
                                                 : value_->is_number_integer();
  const int64_t number = fits ? value_->template get<int64_t>() : 0;
  if (!fits || number < min || number > max) refuse_value(fmt::format("an integer from {} to {}", min, max));
  return number;
}

template <class Json>
double BasicJsonNode<Json>::number() const {
  if (value_->is_binary()) return std::stod(big_integer_text(*value_));
  if (!value_->is_number()) refuse_value("a number");
  return value_->template get<double>();
}

template <class Json>
const BasicJsonNode<Json>& BasicJsonNode<Json>::object() const {
  if (!value_->is_object()) refuse("must be an object");
  return *this;
}

template <class Json>
const BasicJsonNode<Json>& BasicJsonNode<Json>::array() const {
  if (!value_->is_array()) refuse("must be a list");
  return *this;
}

template <class Json>
std::string BasicJsonNode<Json>::text_or(std::string_view key, const std::string& otherwise) const {
  return has(key) ? at(key).text() : otherwise;
}

template <class Json>
bool BasicJsonNode<Json>::boolean_or(std::string_view key, bool otherwise) const {
  return has(key) ? at(key).boolean() : otherwise;
}

template <class Json>
void BasicJsonNode<Json>::check_keys(std::initializer_list<std::string_view> keys,
                                     std::initializer_list<std::string_view> optional) const {
  for (const std::string_view key : keys) at(key);
  const auto names = [](std::initializer_list<std::string_view> list, std::string_view key) {
    return std::ranges::find(list, key) != list.end();
  };
  for (const auto& [key, value] : object().value_->items()) {
    if (names(keys, key) || names(optional, key)) continue;
    refuse(fmt::format("the key {} is not supported", key.substr(0, 60)));
  }
}

template <class Json>
void BasicJsonNode<Json>::refuse(const std::string& what) const {
  throw UserError(ExitCode::bad_content, where_.empty() ? what : fmt::format("{}: {}", where_, what));
}

template <class Json>
void BasicJsonNode<Json>::refuse_value(std::string_view expected) const {
  refuse(fmt::format("must be {}, not {}", expected, printable_value(*value_)));
}

template class BasicJsonNode<nlohmann::json>;
template class BasicJsonNode<nlohmann::ordered_json>;

}  // namespace llmtrain
