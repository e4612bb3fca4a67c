#pragma once
// Parsers and printers of a deck's values, by the type of the field. A parser reads to the end of the text, or throws
// UserError(ExitCode::deck) that says what is wrong, without file and line.

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/deck/named_enum.hpp"
#include "core/deck/task.hpp"
#include "core/error.hpp"

namespace llmtrain {

/// Allowed numbers. An `open` end is excluded.
struct ValueRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false;
  bool open_max = false;

  bool contains(double x) const { return (open_min ? x > min : x >= min) && (open_max ? x < max : x <= max); }
  std::string text() const;  ///< ">= 1", "0 .. 1 (1 excluded)"; "" if unlimited
};

constexpr ValueRange at_least(double min) { return {.min = min}; }
constexpr ValueRange above(double min) { return {.min = min, .open_min = true}; }
constexpr ValueRange between(double min, double max) { return {.min = min, .max = max}; }
constexpr ValueRange from_below(double min, double max) { return {.min = min, .max = max, .open_max = true}; }

/// Effect of a changed value of a key on a run that resumes.
enum class Change : uint8_t {
  breaks,   ///< the saved state would not fit: the change is refused
  applies,  ///< takes effect from the resumed step on
  nothing   ///< does not affect results
};

/// Properties of a key besides its name and type.
struct KeyInfo {
  std::string_view unit = {};  ///< "steps", "bytes", ...; empty for pure numbers and text
  ValueRange range = {};
  std::string_view doc = {};
  /// description of an automatic value, which follows from other keys, the data or the device
  std::string_view automatic = {};
  bool required = false;
  std::optional<Change> change = {};  ///< overrides the section's
  std::optional<TaskSet> tasks = {};  ///< tasks that use the key; overrides the section's
};

/// A duration: 90s, 15m, 4h.
struct Duration {
  int64_t seconds = 0;
};

/// A number of bytes or items: digits with `_` between them and an optional suffix K M G (powers of 1000) or KiB MiB
/// GiB.
int64_t parse_count(std::string_view text, const ValueRange& range);
double parse_number(std::string_view text, const ValueRange& range);
bool parse_bool(std::string_view text);
Duration parse_duration(std::string_view text);
/// Text. It may contain \n, \t, \s (a space), \, and \\ and \xHH (a byte); any other backslash stands for itself.
std::string parse_text(std::string_view text);
/// Items separated by commas; a new line of the deck follows a comma. An empty text is an empty list.
std::vector<std::string_view> split_list(std::string_view text);
/// Index into `names`.
size_t parse_name(std::string_view text, std::span<const std::string_view> names);

std::string print_number(double value);
std::string print_duration(Duration value);
/// Escapes the text so that parse_text returns it, also as an item of a list and after white space, `;` and `#`.
std::string print_text(std::string_view text);

/// The codec of a field type: parse, print and the type's name for people.
template <class T>
struct DeckValue;

template <>
struct DeckValue<int64_t> {
  static int64_t parse(std::string_view text, const KeyInfo& info) { return parse_count(text, info.range); }
  static std::string print(int64_t value) { return std::to_string(value); }
  static std::string type() { return "count"; }
};

template <>
struct DeckValue<double> {
  static double parse(std::string_view text, const KeyInfo& info) { return parse_number(text, info.range); }
  static std::string print(double value) { return print_number(value); }
  static std::string type() { return "number"; }
};

/// The codec of a number that kernels use in fp32: both the value and its fp32 rounding must be in the key's range; the
/// rounding must be finite, and 0 only if the value is 0.
struct Fp32Number : DeckValue<double> {
  static double parse(std::string_view text, const KeyInfo& info);
};

template <>
struct DeckValue<bool> {
  static bool parse(std::string_view text, const KeyInfo&) { return parse_bool(text); }
  static std::string print(bool value) { return value ? "true" : "false"; }
  static std::string type() { return "true / false"; }
};

template <>
struct DeckValue<Duration> {
  static Duration parse(std::string_view text, const KeyInfo&) { return parse_duration(text); }
  static std::string print(Duration value) { return print_duration(value); }
  static std::string type() { return "duration"; }
};

template <>
struct DeckValue<std::string> {
  static std::string parse(std::string_view text, const KeyInfo&) { return parse_text(text); }
  static std::string print(const std::string& value) { return print_text(value); }
  static std::string type() { return "text"; }
};

template <NamedEnum E>
struct DeckValue<E> {
  static E parse(std::string_view text, const KeyInfo&) { return static_cast<E>(parse_name(text, enum_names<E>)); }
  static std::string print(E value) { return std::string(name_of(value)); }
  static std::string type() {
    std::string names;
    for (std::string_view name : enum_names<E>) names += (names.empty() ? "" : " / ") + std::string(name);
    return names;
  }
};

template <class T>
struct DeckValue<std::vector<T>> {
  static std::vector<T> parse(std::string_view text, const KeyInfo& info) {
    std::vector<T> values;
    for (std::string_view item : split_list(text)) values.push_back(DeckValue<T>::parse(item, info));
    return values;
  }
  static std::string print(const std::vector<T>& values) {
    std::string text;
    for (const T& value : values) text += (text.empty() ? "" : ", ") + DeckValue<T>::print(value);
    return text;
  }
  static std::string type() { return "list of " + DeckValue<T>::type(); }
};

}  // namespace llmtrain
