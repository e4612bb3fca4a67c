// Filters of single values: text and numbers.

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/find_entry.hpp"
#include "text/chat/jinja/builtins.hpp"
#include "text/chat/jinja/operators.hpp"
#include "text/chat/jinja/printing.hpp"
#include "text/chat/jinja/python_text.hpp"

namespace llmtrain::jinja {
namespace text_filters {
namespace {

using Args = const Arguments&;

Value call_method(Evaluator& evaluator, const Value& input, std::string_view name, Args arguments) {
  const Value text = to_text(evaluator, input);
  return evaluator.call(*find_method(evaluator, text, name), arguments);
}

template <Case wanted>
Value change_case(Evaluator& evaluator, const Value& input, Args arguments) {
  const Bound bound(evaluator, "the filter", arguments, {});
  const MarkedText text = to_text(evaluator, input);
  evaluator.charge(static_cast<int64_t>(text.size() / 4));
  return evaluator.text(with_case(text.bytes(), wanted), text.all_marks());
}

/// Jinja's own title: a word begins after white space, "-", "(", "{", "[" and "<".
Value title(Evaluator& evaluator, const Value& input, Args) {
  const MarkedText text = to_text(evaluator, input);
  evaluator.charge(static_cast<int64_t>(text.size() / 2));
  std::string result;
  bool begins = true;
  for (size_t i = 0; i < text.size();) {
    const size_t begin = i;
    const char32_t c = next_code_point(text.bytes(), i);
    const std::string_view character = std::string_view(text.bytes()).substr(begin, i - begin);
    result += with_case(character, begins ? Case::upper : Case::lower);
    begins = is_python_space(c) ||
             (c < 0x80 && std::string_view("-({[<").find(static_cast<char>(c)) != std::string_view::npos);
  }
  return evaluator.text(std::move(result), text.all_marks());
}

Value default_value(Evaluator& evaluator, const Value& input, Args arguments) {
  const Bound bound(evaluator, "default", arguments, {"default_value", "boolean"});
  const bool is_missing = input.is_undefined() || (bound.truth(1, false) && !input.truth());
  if (!is_missing) return input;
  return bound.has(0) ? bound[0] : Value::text("");
}

/// Digits as int() and float() read them: without white space around them and "_" between digits.
std::string number_digits(std::string_view text) {
  const size_t begin = skip_python_spaces(text, 0), end = strip_python_spaces_right(text, begin, text.size());
  std::string digits;
  for (size_t i = begin; i < end; ++i) {
    const bool is_between = i > begin && i + 1 < end && text[i - 1] != '_' && text[i + 1] != '_';
    if (text[i] != '_' || !is_between) digits += text[i];
  }
  return digits.starts_with('+') && !digits.starts_with("+-") ? digits.substr(1) : digits;
}

std::optional<double> read_float(std::string_view text) {
  const std::string digits = number_digits(text);
  double number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (digits.empty() || end != digits.data() + digits.size() || error == std::errc::invalid_argument)
    return std::nullopt;
  return number;
}

std::optional<int64_t> read_integer(std::string_view text, int base) {
  std::string digits = number_digits(text);
  const bool is_negative = digits.starts_with('-');
  const std::string prefix = base == 16 ? "0x" : base == 8 ? "0o" : base == 2 ? "0b" : "none";
  if (digits.substr(is_negative ? 1 : 0).starts_with(prefix)) digits.erase(is_negative ? 1 : 0, 2);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number, base);
  if (digits.empty() || end != digits.data() + digits.size() || error != std::errc()) return std::nullopt;
  return number;
}

Value to_integer(Evaluator& evaluator, const Value& input, Args arguments) {
  const Bound bound(evaluator, "int", arguments, {"default", "base"});
  const int64_t base = bound.integer(1, 10);
  evaluator.require_defined(input);
  std::optional<double> number = input.number();
  if (input.integer()) return *input.integer();
  if (input.as_big() != nullptr) return input;
  if (const MarkedText* text = input.as_text()) {
    evaluator.charge(static_cast<int64_t>(text->size() / 8));
    if (base < 2 || base > 36) evaluator.fail("the base of int must be 2 to 36");
    if (const auto whole = read_integer(text->bytes(), static_cast<int>(base))) return *whole;
    if (const auto big = read_big_integer(number_digits(text->bytes())); big && base == 10) return *big;
    number = read_float(text->bytes());
  }
  if (number && std::abs(*number) < 0x1p63) return static_cast<int64_t>(*number);
  if (number && std::isfinite(*number)) return digits_of(*number);
  return bound.has(0) ? bound[0] : Value(int64_t{0});
}

Value indent(Evaluator& evaluator, const Value& input, Args arguments) {
  const Bound bound(evaluator, "indent", arguments, {"width", "first", "blank"});
  const bool has_text = bound.has(0) && bound[0].as_text() != nullptr;
  const int64_t width = has_text ? 0 : std::clamp<int64_t>(bound.integer(0, 4), 0, 10'000);
  const MarkedText margin = has_text ? bound.text(0) : MarkedText(std::string(static_cast<size_t>(width), ' '));
  const MarkedText text = to_text(evaluator, input);
  const bool indents_first = bound.truth(1, false), indents_blank = bound.truth(2, false);
  MarkedText result;
  if (indents_first) result.append(margin);
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.bytes().find('\n', begin), text.size());
    if (begin > 0 && (indents_blank || end > begin)) result.append(margin);
    result.append(text, begin, end);
    if (end < text.size()) result.append(text, end, end + 1);
    evaluator.check_text(result.size());
    evaluator.charge(1);
    begin = end + 1;
  }
  return evaluator.text(std::move(result));
}

Value to_json_filter(Evaluator& evaluator, const Value& input, Args arguments) {
  const Bound bound(evaluator, "tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonOptions options;
  options.ascii = bound.truth(0, false);
  options.sort_keys = bound.truth(3, false);
  if (bound.is_given(1)) {
    options.is_indented = true;
    options.item_separator = ",";
    const bool has_text = bound[1].as_text() != nullptr;
    const int64_t width = has_text ? 0 : std::clamp<int64_t>(bound.integer(1, 0), 0, 1000);
    options.indent = has_text ? bound.text(1) : MarkedText(std::string(static_cast<size_t>(width), ' '));
  }
  if (bound.is_given(2)) {
    const std::shared_ptr<const Sequence> both = evaluator.items(bound[2]);
    const bool are_texts =
        both->items.size() == 2 && both->items[0].as_text() != nullptr && both->items[1].as_text() != nullptr;
    if (!are_texts) evaluator.fail("the separators of tojson are two texts");
    options.item_separator = both->items[0].as_text()->bytes();
    options.key_separator = both->items[1].as_text()->bytes();
  }
  return evaluator.text(to_json(evaluator, input, options));
}

Value text_of(Evaluator& evaluator, const Value& input, Args) { return to_text(evaluator, input); }

constexpr NamedFunction filters[] = {
    {"capitalize", change_case<Case::capitalized>},
    {"d", default_value},
    {"default", default_value},
    {"indent", indent},
    {"int", to_integer},
    {"lower", change_case<Case::lower>},
    {"replace", [](Evaluator& e, const Value& v, Args a) { return call_method(e, v, "replace", a); }},
    {"safe", text_of},
    {"string", text_of},
    {"title", title},
    {"tojson", to_json_filter},
    {"trim", [](Evaluator& e, const Value& v, Args a) { return call_method(e, v, "strip", a); }},
    {"upper", change_case<Case::upper>},
};

}  // namespace
}  // namespace text_filters

const NamedFunction* find_text_filter(std::string_view name) {
  return find_entry(text_filters::filters, name, &NamedFunction::name);
}

const NamedFunction* find_filter(std::string_view name) {
  const NamedFunction* found = find_text_filter(name);
  return found != nullptr ? found : find_sequence_filter(name);
}

}  // namespace llmtrain::jinja
