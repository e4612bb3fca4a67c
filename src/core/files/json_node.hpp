#pragma once
// Typed access to a JSON document. An error names the file, the key with its path, the expected value and the actual
// one.

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "core/files/json_reader.hpp"

namespace llmtrain {

/// A value and its path. The document must outlive it. Every error is a UserError(bad_content).
template <class Json>
class BasicJsonNode {
 public:
  /// `where`: prefix of its messages: the file's name, or nothing.
  BasicJsonNode(const Json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  const Json& value() const { return *value_; }
  const std::string& where() const { return where_; }
  bool is_null() const { return value_->is_null(); }
  bool has(std::string_view key) const;  ///< True if the key is present and not null
  BasicJsonNode at(std::string_view key) const;
  BasicJsonNode at(size_t index) const;
  size_t size() const { return value_->size(); }

  const std::string& text() const;
  bool boolean() const;
  int64_t integer_between(int64_t min, int64_t max) const;
  int64_t count(int64_t max = std::numeric_limits<int64_t>::max()) const { return integer_between(0, max); }
  double number() const;
  const BasicJsonNode& object() const;
  const BasicJsonNode& array() const;
  std::string text_or(std::string_view key, const std::string& otherwise) const;
  bool boolean_or(std::string_view key, bool otherwise) const;

  /// Calls take(name, node) for the members of an object.
  template <class Take>
  void each_member(const Take& take) const {
    for (const auto& [name, value] : object().value_->items()) take(name, BasicJsonNode(value, child(printable(name))));
  }

  /// Requires an object with these keys, optionally some of the optional ones, and no others, which would change the
  /// meaning of the rest.
  void check_keys(std::initializer_list<std::string_view> keys,
                  std::initializer_list<std::string_view> optional = {}) const;
  void allow(std::initializer_list<std::string_view> keys) const { check_keys({}, keys); }
  [[noreturn]] void refuse(const std::string& what) const;
  /// "must be `expected`, not <the value>"
  [[noreturn]] void refuse_value(std::string_view expected) const;

 private:
  std::string child(std::string_view key) const;

  const Json* value_;
  std::string where_;
};

using JsonNode = BasicJsonNode<nlohmann::json>;
using OrderedJsonNode = BasicJsonNode<nlohmann::ordered_json>;  ///< objects keep the order of their keys

}  // namespace llmtrain
