#pragma once
// Settings of another program: values of a file in JSON, YAML, TOML, INI or in literal Python, each with its line.
// Files are untrusted: size, depth and number of values are bounded, nothing in them is executed, and variables of the
// environment are not read.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace llmtrain {

struct SettingMember;

struct SettingValue {
  enum class Kind : uint8_t { null, boolean, number, text, list, map, reference, unreadable };

  Kind kind = Kind::null;
  std::string text;  ///< of a scalar; a boolean is true or false. In a Python file also a name (reference), or why the
                     ///< value is not a literal (unreadable)
  std::vector<SettingValue> items;     ///< of a list; positional arguments of a call
  std::vector<SettingMember> members;  ///< of a map, in their order
  std::string callee;                  ///< of a call in Python, whose arguments are the members
  int line = 0;

  static SettingValue scalar(Kind kind, std::string text, int line);
  bool is(Kind other) const { return kind == other; }
  const SettingValue* find(std::string_view name) const;
  bool operator==(const SettingValue& other) const;  ///< lines do not count
  /// The value for people, in one line.
  std::string print() const;

  /// The scalar as a number, also of a text such as "1e-4" (YAML 1.1 reads that as text) or 1_000; nothing if it is
  /// none.
  std::optional<double> number() const;
  std::optional<int64_t> integer() const;
  /// The scalar as a boolean, also of the text yes, no, on, off.
  std::optional<bool> boolean() const;
};

struct SettingMember {
  std::string first;  ///< name
  SettingValue second;
  bool operator==(const SettingMember&) const = default;
};

inline SettingValue SettingValue::scalar(Kind kind, std::string text, int line) {
  SettingValue value;
  value.kind = kind;
  value.text = std::move(text);
  value.line = line;
  return value;
}

inline constexpr int64_t max_settings_bytes = 1 << 20;
inline constexpr int max_settings_depth = 64;
inline constexpr int64_t max_settings_values = 100'000;

/// Builds the tree of one file within the limits. Every error is a UserError(bad_content) "file:line: reason".
class SettingsBuilder {
 public:
  explicit SettingsBuilder(std::string file) : file_(std::move(file)) {}

  [[noreturn]] void fail(int line, const std::string& reason) const;
  /// Counts a value; also the values that a reader copies.
  void count(int line, int64_t values = 1);
  void check_depth(int depth, int line) const;
  /// Adds a member. A name that is there already is an error, unless the value is the same.
  void add(SettingValue& map, const std::string& name, SettingValue value) const;
  /// Finds or makes the map of a dotted name in a map.
  SettingValue& map_at(SettingValue& root, const std::string& dotted, int line) const;

 private:
  std::string file_;
  int64_t values_ = 0;
};

SettingValue read_json_settings(std::string_view text, const std::string& file);
SettingValue read_yaml_settings(std::string_view text, const std::string& file);
SettingValue read_toml_settings(std::string_view text, const std::string& file);
SettingValue read_ini_settings(std::string_view text, const std::string& file);
/// Reads assignments of literals and calls with literal arguments; every other statement is an error. Imports and names
/// that are not assigned in the file have no value; an assigned value that is not a literal is unreadable.
SettingValue read_python_settings(std::string_view text, const std::string& file);

/// The kind of a scalar without quotation marks, by its text, as YAML 1.1 and Python write them.
SettingValue plain_scalar(const std::string& text, int line);

/// Reads a file by the ending of its name. Throws UserError: command_line for another ending, missing_input,
/// bad_content.
SettingValue read_settings(const std::string& path);

}  // namespace llmtrain
