#include "hf/config/config_keys.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/deck/suggestion.hpp"
#include "core/error.hpp"

namespace llmtrain {
namespace {

double positive(const JsonNode& node) {
  const double number = node.number();
  if (!(number > 0) || !std::isfinite(number)) node.refuse_value("a number above 0");
  return number;
}

}  // namespace

ConfigKeys::ConfigKeys(const nlohmann::json* object, std::string prefix, std::vector<std::string>& problems)
    : object_(object), prefix_(std::move(prefix)), problems_(problems) {
  if (object_ != nullptr && !object_->is_object()) {
    problems_.push_back(fmt::format("{}: must be an object", prefix_.substr(0, prefix_.find_last_of('.'))));
    object_ = nullptr;
  }
}

bool ConfigKeys::has_key(std::string_view key) const {
  return object_ != nullptr && object_->find(std::string(key)) != object_->end();
}

const nlohmann::json* ConfigKeys::find(std::string_view key) const {
  if (object_ == nullptr) return nullptr;
  const auto at = object_->find(std::string(key));
  return at == object_->end() || at->is_null() ? nullptr : &*at;
}

void ConfigKeys::problem(std::string_view key, const std::string& what) {
  problems_.push_back(fmt::format("{}{}: {}", prefix_, key, what));
}

template <class Value, class Read>
Value ConfigKeys::read(std::string_view key, Value fallback, const Read& read) {
  const nlohmann::json* found = value(key);
  if (found == nullptr) return fallback;
  try {
    return read(JsonNode(*found, prefix_ + std::string(key)));
  } catch (const UserError& error) {
    problems_.emplace_back(error.what());
    return fallback;
  }
}

template <class Value, class Read>
std::vector<Value> ConfigKeys::list(std::string_view key, size_t most, const Read& read_item) {
  return read(key, std::vector<Value>(), [&](const JsonNode& node) {
    if (node.array().size() > most) node.refuse(fmt::format("must be a list of at most {} items", most));
    std::vector<Value> items;
    for (size_t i = 0; i < node.size(); ++i) items.push_back(read_item(node.at(i)));
    return items;
  });
}

void ConfigKeys::require(std::string_view key) {
  if (!has(key)) problem(key, "is missing");
}

int64_t ConfigKeys::integer(std::string_view key, std::optional<int64_t> fallback, int64_t low, int64_t high) {
  if (!fallback) require(key);
  return read(key, fallback.value_or(low), [&](const JsonNode& node) { return node.integer_between(low, high); });
}

double ConfigKeys::number(std::string_view key, std::optional<double> fallback) {
  if (!fallback) require(key);
  return read(key, fallback.value_or(1), positive);
}

bool ConfigKeys::boolean(std::string_view key, bool fallback) {
  return read(key, fallback, [](const JsonNode& node) { return node.boolean(); });
}

std::string ConfigKeys::text(std::string_view key, const std::string& fallback) {
  return read(key, fallback, [](const JsonNode& node) { return node.text(); });
}

std::vector<double> ConfigKeys::numbers(std::string_view key, size_t most) { return list<double>(key, most, positive); }

std::vector<std::string> ConfigKeys::texts(std::string_view key, size_t most) {
  return list<std::string>(key, most, [](const JsonNode& node) { return node.text(); });
}

const nlohmann::json* ConfigKeys::value(std::string_view key) {
  read_.emplace(key);
  return find(key);
}

void ConfigKeys::only(std::string_view key, const nlohmann::json& allowed, std::string_view why) {
  const nlohmann::json* found = value(key);
  if (found != nullptr && *found != allowed) problem(key, fmt::format("{}: {}", printable_value(*found), why));
}

void ConfigKeys::no_effect(std::string_view keys) {
  while (!keys.empty()) {
    const size_t end = std::min(keys.find(' '), keys.size());
    without_effect_.emplace(keys.substr(0, end));
    keys.remove_prefix(std::min(end + 1, keys.size()));
  }
}

void ConfigKeys::no_effect_as(std::string_view key, const nlohmann::json& value) {
  const nlohmann::json* found = find(key);
  if (found == nullptr || *found == value) without_effect_.emplace(key);
}

void ConfigKeys::list_unknown(std::vector<std::string>& names) const {
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
