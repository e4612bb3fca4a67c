#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/json_node.hpp"

namespace llmtrain {

/// The keys of one object of a config.json. Each is read by its JsonNode, whose errors are collected, so that a user
/// sees all of them at once; keys that nobody reads are listed. null counts as absent, except in has_key().
class ConfigKeys {
 public:
  /// `prefix` precedes the names of keys in problems, such as "rope_scaling.". An absent object has no keys.
  ConfigKeys(const nlohmann::json* object, std::string prefix, std::vector<std::string>& problems);

  bool has(std::string_view key) const { return find(key) != nullptr; }
  bool has_key(std::string_view key) const;
  /// A key without a fallback is required.
  int64_t integer(std::string_view key, std::optional<int64_t> fallback, int64_t low, int64_t high);
  /// The number must be positive.
  double number(std::string_view key, std::optional<double> fallback);
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key, const std::string& fallback);
  std::vector<double> numbers(std::string_view key, size_t most);
  std::vector<std::string> texts(std::string_view key, size_t most);
  /// Returns the value itself, or null.
  const nlohmann::json* value(std::string_view key);
  /// Accepts the key with this value only, since no other is supported.
  void only(std::string_view key, const nlohmann::json& allowed, std::string_view why);
  /// Accepts keys with any value; spaces separate their names.
  void no_effect(std::string_view keys);
  /// Accepts a key that this family does not read if its value equals the family's behaviour; otherwise it stays
  /// unknown.
  void no_effect_as(std::string_view key, const nlohmann::json& value);
  void problem(std::string_view key, const std::string& what);
  /// Adds the unread keys, each with the most similar name among the read ones.
  void list_unknown(std::vector<std::string>& names) const;

 private:
  const nlohmann::json* find(std::string_view key) const;
  /// read(node) of the key, or the fallback where it is absent or wrong.
  template <class Value, class Read>
  Value read(std::string_view key, Value fallback, const Read& read);
  template <class Value, class Read>
  std::vector<Value> list(std::string_view key, size_t most, const Read& read_item);
  void require(std::string_view key);

  const nlohmann::json* object_;
  std::string prefix_;
  std::vector<std::string>& problems_;
  std::set<std::string, std::less<>> read_, without_effect_;
};

/// Returns the warning about keys that no reader requested; empty if there are none.
std::string unknown_keys_text(const std::vector<std::string>& names);

}  // namespace llmtrain
