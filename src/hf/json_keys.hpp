#pragma once
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain {

/// A hostile value as part of a message.
std::string shown(const nlohmann::json& value);

/// Reads the keys of one JSON object, remembers which, and collects everything that is wrong: wrong types, values out
/// of range, keys that nobody asked for. null counts as absent, except in has_key().
class JsonKeys {
 public:
  /// `prefix` begins the names of keys in problems, such as "rope_scaling.". An absent object has no keys.
  JsonKeys(const nlohmann::json* object, std::string prefix, std::vector<std::string>& problems);

  bool has(std::string_view key) const { return find(key) != nullptr; }
  bool has_key(std::string_view key) const;
  /// Without a fallback the key is required.
  int64_t integer(std::string_view key, std::optional<int64_t> fallback, int64_t low, int64_t high);
  /// Positive.
  double number(std::string_view key, std::optional<double> fallback);
  bool boolean(std::string_view key, bool fallback);
  std::string text(std::string_view key, const std::string& fallback);
  std::vector<double> numbers(std::string_view key, size_t most);
  std::vector<std::string> texts(std::string_view key, size_t most);
  /// The value itself, or null.
  const nlohmann::json* value(std::string_view key);
  /// The key may be there with this value only, since no other is supported.
  void only(std::string_view key, const nlohmann::json& allowed, std::string_view why);
  void no_effect(std::initializer_list<std::string_view> keys);
  void problem(std::string_view key, const std::string& what);
  /// Reports the keys that are left.
  void finish();

 private:
  const nlohmann::json* find(std::string_view key) const;
  const nlohmann::json* use(std::string_view key);

  const nlohmann::json* object_;
  std::string prefix_;
  std::vector<std::string>& problems_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace llmtrain
