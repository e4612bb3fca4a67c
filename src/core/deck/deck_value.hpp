#pragma once
// How the value of a deck's key is read and written, by the type of its field. Reading goes to the end of the text, or
// throws UserError(ExitCode::deck) that says what is wrong, without the place.

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/deck/named_enum.hpp"
#include "core/error.hpp"

namespace llmtrain {

/// Allowed numbers. `open` ends are not themselves allowed.
struct ValueRange {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false;
  bool open_max = false;

  bool contains(double x) const { return (open_min ? x > min : x >= min) && (open_max ? x < max : x <= max); }
  std::string text() const;  ///< ">= 1", "0 .. 1 (1 excluded)", "" for everything
};

constexpr ValueRange at_least(double min) { return {.min = min}; }
constexpr ValueRange above(double min) { return {.min = min, .open_min = true}; }
constexpr ValueRange between(double min, double max) { return {.min = min, .max = max}; }
constexpr ValueRange from_below(double min, double max) { return {.min = min, .max = max, .open_max = true}; }

/// What another value of a key means to a run that goes on.
enum class Change : uint8_t {
  breaks,   ///< its state would not fit: refused
  applies,  ///< from there on
  nothing   ///< to its results
};

/// What a deck tells about a key besides its name and type.
struct KeyInfo {
  std::string_view unit = {};  ///< "steps", "bytes", ...; empty for pure numbers and text
  ValueRange range = {};
  std::string_view doc = {};
  std::string_view automatic = {};  ///< in words, where a missing value comes from other keys, the data or the device
  bool required = false;
  std::optional<Change> change = {};  ///< unless it is the section's
};

/// 90s, 15m, 4h
struct Duration {
  int64_t seconds = 0;
};

/// Digits with `_` between them and an optional suffix K M G (powers of 1000) or KiB MiB GiB.
int64_t parse_count(std::string_view text, const ValueRange& range);
double parse_number(std::string_view text, const ValueRange& range);
bool parse_bool(std::string_view text);
Duration parse_duration(std::string_view text);
/// Text may contain \n, \t, \s (a space), \, and \\ and \xHH (a byte); any other backslash stands for itself.
std::string parse_text(std::string_view text);
/// Items between commas; a new line of the deck follows a comma. An empty text is an empty list.
std::vector<std::string_view> split_list(std::string_view text);
/// Index into `names`.
size_t parse_name(std::string_view text, std::span<const std::string_view> names);

std::string print_number(double value);
std::string print_duration(Duration value);
/// Such that parse_text gives it back, also as an item of a list and behind white space, `;` and `#`.
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

/// The codec of a number that kernels compute with in fp32: beside the value its fp32 rounding is in the key's range,
/// finite, and 0 only if the value is.
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
