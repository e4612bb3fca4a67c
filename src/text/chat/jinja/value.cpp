#include "text/chat/jinja/value.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace llmtrain::jinja {

int compare(const BigInteger& a, const BigInteger& b) {
  const int sign = a.is_negative() ? -1 : 1;
  if (a.is_negative() != b.is_negative()) return sign;
  if (a.digits.size() != b.digits.size()) return a.digits.size() < b.digits.size() ? -sign : sign;
  const int order = a.digits.compare(b.digits);
  return order == 0 ? 0 : order < 0 ? -sign : sign;
}

std::optional<BigInteger> read_big_integer(std::string_view digits) {
  constexpr size_t max_digits = 308;  // of a double
  const bool is_negative = digits.starts_with('-');
  if (is_negative) digits.remove_prefix(1);
  if (digits.empty() || digits.find_first_not_of("0123456789") != std::string_view::npos) return std::nullopt;
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  const BigInteger big{(is_negative ? "-" : "") + std::string(digits)};
  int64_t small = 0;
  const auto [end, error] = std::from_chars(big.digits.data(), big.digits.data() + big.digits.size(), small);
  const bool is_beyond = error == std::errc::result_out_of_range && digits.size() <= max_digits;
  return is_beyond ? std::optional(big) : std::nullopt;
}

BigInteger digits_of(double integral) { return {fmt::format("{:.0f}", integral)}; }

std::optional<int64_t> Value::integer() const {
  if (as_int() != nullptr) return *as_int();
  if (as_bool() != nullptr) return *as_bool() ? 1 : 0;
  return std::nullopt;
}

std::optional<double> Value::number() const {
  if (as_float() != nullptr) return *as_float();
  if (as_big() != nullptr) return std::strtod(as_big()->digits.c_str(), nullptr);
  const std::optional<int64_t> whole = integer();
  return whole ? std::optional<double>(static_cast<double>(*whole)) : std::nullopt;
}

bool Value::truth() const {
  if (const std::optional<double> n = number()) return *n != 0;
  if (as_text() != nullptr) return as_text()->size() > 0;
  if (as_dict() != nullptr) return !as_dict()->entries.empty();
  if (const Sequence* items = as_sequence()) return items->kind == SequenceKind::generator || !items->items.empty();
  return as_object() != nullptr;
}

uint32_t Value::depth() const {
  if (as_sequence() != nullptr) return as_sequence()->depth;
  if (as_dict() != nullptr) return as_dict()->depth;
  return as_object() != nullptr ? as_object()->depth() : 0;
}

std::string Value::type_name() const {
  static constexpr const char* names[] = {"undefined", "NoneType", "bool", "int",    "float",
                                          "str",       "list",     "dict", "object", "int"};
  static constexpr const char* kinds[] = {"list",        "tuple",      "range",    "dict_keys",
                                          "dict_values", "dict_items", "generator"};
  if (as_object() != nullptr) return as_object()->type_name();
  if (as_sequence() != nullptr) return kinds[static_cast<size_t>(as_sequence()->kind)];
  return names[data_.index()];
}

const std::string& Value::undefined_description() const {
  static const std::string unnamed = "the value is undefined";
  const auto& description = std::get<Undefined>(data_).description;
  return description == nullptr ? unnamed : *description;
}

const Value* Dict::find(std::string_view key) const {
  for (const auto& [name, value] : entries) {
    const MarkedText* text = name.as_text();
    if (text != nullptr && text->bytes() == key) return &value;
  }
  return nullptr;
}

}  // namespace llmtrain::jinja
