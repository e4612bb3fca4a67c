#pragma once
// Strict access to JSON in a checkpoint's files: every field is present, has its type, and no other fields exist.

#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.hpp"
#include "core/files/content_hash.hpp"
#include "core/files/json_reader.hpp"

namespace llmtrain {

/// A value and its location for messages.
class JsonField {
 public:
  JsonField(const nlohmann::json& value, std::string place) : value_(value), place_(std::move(place)) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(ExitCode::bad_content, fmt::format("{}: {}", place_, what));
  }
  /// Requires an object with these keys, optionally some of the optional ones, and no others.
  void check_keys(std::initializer_list<std::string_view> keys,
                  std::initializer_list<std::string_view> optional = {}) const {
    if (!value_.is_object()) refuse("an object is expected");
    for (const std::string_view key : keys) {
      if (!value_.contains(key)) refuse(fmt::format("\"{}\" is missing", key));
    }
    size_t known = keys.size();
    for (const std::string_view key : optional) known += value_.contains(key) ? 1 : 0;
    if (value_.size() != known) refuse("unknown keys are present");
  }
  bool has(std::string_view key) const { return value_.is_object() && value_.contains(key); }
  JsonField operator[](std::string_view key) const {
    return {value_.at(std::string(key)), fmt::format("{}.{}", place_, key)};
  }
  JsonField operator[](size_t i) const { return {value_.at(i), fmt::format("{}[{}]", place_, i)}; }
  /// Returns the elements of an array.
  size_t size() const {
    if (!value_.is_array()) refuse("an array is expected");
    return value_.size();
  }
  /// Calls take(name, field) for the members of an object.
  template <class Take>
  void each_member(const Take& take) const {
    if (!value_.is_object()) refuse("an object is expected");
    for (const auto& [name, value] : value_.items()) take(name, JsonField(value, place_ + "." + printable(name)));
  }
  int64_t count(int64_t most = std::numeric_limits<int64_t>::max()) const {
    if (!value_.is_number_unsigned() || value_.get<uint64_t>() > static_cast<uint64_t>(most)) {
      refuse(fmt::format("a number from 0 to {} is expected", most));
    }
    return value_.get<int64_t>();
  }
  bool boolean() const {
    if (!value_.is_boolean()) refuse("true or false is expected");
    return value_.get<bool>();
  }
  const std::string& text() const {
    if (!value_.is_string()) refuse("a string is expected");
    return value_.get_ref<const std::string&>();
  }
  Digest digest() const {
    const auto digest = parse_digest(text());
    if (!digest) refuse("a hash of 32 hexadecimal digits is expected");
    return *digest;
  }

 private:
  const nlohmann::json& value_;
  std::string place_;
};

}  // namespace llmtrain
