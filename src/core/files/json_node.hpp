#pragma once
// Typed access to a JSON document. An error names the file, the key with its path, what is expected there and what is
// found.

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "core/files/json_reader.hpp"

namespace llmtrain {

/// A value and where it stands. The document outlives it. Every error is a UserError(bad_content).
class JsonNode {
 public:
  /// `where` begins its messages: the file's name, or nothing.
  JsonNode(const nlohmann::json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& where() const { return where_; }
  bool is_null() const { return value_->is_null(); }
  bool has(std::string_view key) const;  ///< and it is not null
  JsonNode at(std::string_view key) const;
  JsonNode at(size_t index) const;
  size_t size() const { return value_->size(); }

  const std::string& text() const;
  bool boolean() const;
  int64_t integer(int64_t least, int64_t most) const;
  int64_t count(int64_t most = std::numeric_limits<int64_t>::max()) const { return integer(0, most); }
  double number() const;
  const JsonNode& object() const;
  const JsonNode& array() const;
  std::string text_or(std::string_view key, const std::string& otherwise) const;
  bool boolean_or(std::string_view key, bool otherwise) const;

  /// Calls take(name, node) for the members of an object.
  template <class Take>
  void each_member(const Take& take) const {
    for (const auto& [name, value] : object().value_->items()) take(name, JsonNode(value, child(printable(name))));
  }

  /// An object with these keys, perhaps some of the optional ones, and no others, which would change what the rest
  /// means.
  void check_keys(std::initializer_list<std::string_view> keys,
                  std::initializer_list<std::string_view> optional = {}) const;
  void allow(std::initializer_list<std::string_view> keys) const { check_keys({}, keys); }
  [[noreturn]] void refuse(const std::string& what) const;
  /// "must be `expected`, not <the value>"
  [[noreturn]] void refuse_value(std::string_view expected) const;

 private:
  std::string child(std::string_view key) const;

  const nlohmann::json* value_;
  std::string where_;
};

}  // namespace llmtrain
