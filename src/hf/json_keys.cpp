#include "hf/json_keys.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/files/json_reader.hpp"
#include "core/registry.hpp"

namespace llmtrain {

std::string shown(const nlohmann::json& value) {
  if (value.is_string()) return printable(value.get_ref<const std::string&>());
  const std::string text = printable(value.dump());
  return text.substr(1, text.size() - 2);
}

JsonKeys::JsonKeys(const nlohmann::json* object, std::string prefix, std::vector<std::string>& problems)
    : object_(object), prefix_(std::move(prefix)), problems_(problems) {
  if (object_ != nullptr && !object_->is_object()) {
    problems_.push_back(fmt::format("{}: must be an object", prefix_.substr(0, prefix_.find_last_of('.'))));
    object_ = nullptr;
  }
}

bool JsonKeys::has_key(std::string_view key) const {
  return object_ != nullptr && object_->find(std::string(key)) != object_->end();
}

const nlohmann::json* JsonKeys::find(std::string_view key) const {
  if (object_ == nullptr) return nullptr;
  const auto at = object_->find(std::string(key));
  return at == object_->end() || at->is_null() ? nullptr : &*at;
}

const nlohmann::json* JsonKeys::use(std::string_view key) {
  read_.emplace(key);
  return find(key);
}

void JsonKeys::problem(std::string_view key, const std::string& what) {
  problems_.push_back(fmt::format("{}{}: {}", prefix_, key, what));
}

int64_t JsonKeys::integer(std::string_view key, std::optional<int64_t> fallback, int64_t low, int64_t high) {
  const nlohmann::json* value = use(key);
  if (value == nullptr) {
    if (!fallback) problem(key, "is missing");
    return fallback.value_or(low);
  }
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() || value->get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX));
  const int64_t number = fits ? value->get<int64_t>() : low - 1;
  if (number < low || number > high) {
    problem(key, fmt::format("{} must be an integer from {} to {}", shown(*value), low, high));
    return fallback.value_or(low);
  }
  return number;
}

double JsonKeys::number(std::string_view key, std::optional<double> fallback) {
  const nlohmann::json* value = use(key);
  if (value == nullptr) {
    if (!fallback) problem(key, "is missing");
    return fallback.value_or(1);
  }
  const double number = value->is_number() ? value->get<double>() : -1;
  if (!(number > 0) || !std::isfinite(number)) {
    problem(key, fmt::format("{} must be a number above 0", shown(*value)));
    return fallback.value_or(1);
  }
  return number;
}

bool JsonKeys::boolean(std::string_view key, bool fallback) {
  const nlohmann::json* value = use(key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) problem(key, fmt::format("{} must be true or false", shown(*value)));
  return value->is_boolean() ? value->get<bool>() : fallback;
}

std::string JsonKeys::text(std::string_view key, const std::string& fallback) {
  const nlohmann::json* value = use(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) problem(key, fmt::format("{} must be a text", shown(*value)));
  return value->is_string() ? value->get<std::string>() : fallback;
}

std::vector<double> JsonKeys::numbers(std::string_view key, size_t most) {
  const nlohmann::json* value = use(key);
  std::vector<double> result;
  if (value == nullptr) return result;
  bool sound = value->is_array() && value->size() <= most;
  for (size_t i = 0; sound && i < value->size(); ++i) {
    const nlohmann::json& item = (*value)[i];
    sound = item.is_number() && item.get<double>() > 0;
    if (sound) result.push_back(item.get<double>());
  }
  if (!sound) problem(key, fmt::format("must be a list of at most {} numbers above 0", most));
  return result;
}

std::vector<std::string> JsonKeys::texts(std::string_view key, size_t most) {
  const nlohmann::json* value = use(key);
  std::vector<std::string> result;
  if (value == nullptr) return result;
  bool sound = value->is_array() && value->size() <= most;
  for (size_t i = 0; sound && i < value->size(); ++i) {
    sound = (*value)[i].is_string();
    if (sound) result.push_back((*value)[i].get<std::string>());
  }
  if (!sound) problem(key, fmt::format("must be a list of at most {} texts", most));
  return result;
}

const nlohmann::json* JsonKeys::value(std::string_view key) { return use(key); }

void JsonKeys::only(std::string_view key, const nlohmann::json& allowed, std::string_view why) {
  const nlohmann::json* value = use(key);
  if (value != nullptr && *value != allowed) problem(key, fmt::format("{}: {}", shown(*value), why));
}

void JsonKeys::no_effect(std::string_view keys) {
  while (!keys.empty()) {
    const size_t end = std::min(keys.find(' '), keys.size());
    without_effect_.emplace(keys.substr(0, end));
    keys.remove_prefix(std::min(end + 1, keys.size()));
  }
}

void JsonKeys::no_effect_as(std::string_view key, const nlohmann::json& value) {
  const nlohmann::json* found = find(key);
  if (found == nullptr || *found == value) without_effect_.emplace(key);
}

void JsonKeys::list_unknown(std::vector<std::string>& names) const {
  if (object_ == nullptr) return;
  const std::vector<std::string_view> read(read_.begin(), read_.end());
  for (const auto& [key, value] : object_->items()) {
    if (read_.contains(key) || without_effect_.contains(key)) continue;
    names.push_back(prefix_ + printable(key) + did_you_mean(key, read));
  }
}

std::string unknown_keys_text(const std::vector<std::string>& names) {
  constexpr size_t most = 16;
  if (names.empty()) return {};
  const std::vector<std::string> first(names.begin(),
                                       names.begin() + static_cast<ptrdiff_t>(std::min(names.size(), most)));
  const std::string rest = names.size() > most ? fmt::format(" and {} more", names.size() - most) : "";
  return fmt::format("{} not known and {} no effect: {}{}", names.size() == 1 ? "this key is" : "these keys are",
                     names.size() == 1 ? "has" : "have", fmt::join(first, ", "), rest);
}

}  // namespace llmtrain
