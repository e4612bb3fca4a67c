#pragma once
// Access to JSON documents, with messages that name the location.

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace llmtrain {

/// A value and its location for error messages. The document must outlive it.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& where() const { return where_; }
  bool is_null() const { return value_->is_null(); }
  bool has(std::string_view key) const;  ///< True if the key is present and not null
  JsonNode at(std::string_view key) const;
  JsonNode at(size_t index) const;
  size_t size() const { return value_->size(); }

  const std::string& text() const;
  bool boolean() const;
  int64_t integer(int64_t least, int64_t most) const;
  double number() const;
  const JsonNode& object() const;
  const JsonNode& array() const;
  std::string text_or(std::string_view key, const std::string& otherwise) const;
  bool boolean_or(std::string_view key, bool otherwise) const;

  /// Refuses, by name, keys that are not in the list, since they would change the meaning of the others.
  void allow(std::initializer_list<std::string_view> keys) const;
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  const nlohmann::json* value_;
  std::string where_;
};

}  // namespace llmtrain
