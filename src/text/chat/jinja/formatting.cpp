#include "text/chat/jinja/formatting.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "text/chat/jinja/printing.hpp"
#include "text/chat/jinja/python_text.hpp"

namespace llmtrain::jinja {
namespace {

/// One conversion of a format: what stands between % and its letter.
struct Conversion {
  std::string flags;
  int64_t width = 0;
  int64_t precision = -1;
  char letter = 's';
};

MarkedText padded(MarkedText text, const Conversion& conversion) {
  const int64_t missing = conversion.width - count_code_points(text.bytes());
  if (missing <= 0) return text;
  const MarkedText spaces(std::string(static_cast<size_t>(missing), ' '));
  const bool is_left = conversion.flags.find('-') != std::string::npos;
  MarkedText result = is_left ? text : spaces;
  result.append(is_left ? spaces : text);
  return result;
}

bool has_flag(const Conversion& conversion, char flag) { return conversion.flags.find(flag) != std::string::npos; }

std::string printed_float(const Conversion& conversion, double number) {
  std::string format = "%" + conversion.flags + std::to_string(conversion.width);
  if (conversion.precision >= 0) format += "." + std::to_string(conversion.precision);
  format += conversion.letter;
  std::array<char, 2048> buffer{};
  std::snprintf(buffer.data(), buffer.size(), format.c_str(), number);
  return buffer.data();
}

bool is_decimal_letter(char letter) { return std::string_view("diu").find(letter) != std::string_view::npos; }

/// Prints the sign before the digits of the absolute value in every base, unlike C.
std::string printed_integer(const Conversion& conversion, std::string digits, bool is_negative) {
  const bool is_decimal = is_decimal_letter(conversion.letter);
  const auto pad = [&](int64_t width) {
    if (width > std::ssize(digits)) digits.insert(0, static_cast<size_t>(width) - digits.size(), '0');
  };
  pad(conversion.precision);
  std::string before = is_negative ? "-" : has_flag(conversion, '+') ? "+" : has_flag(conversion, ' ') ? " " : "";
  if (has_flag(conversion, '#') && !is_decimal) before += std::string("0") + conversion.letter;
  if (has_flag(conversion, '0') && !has_flag(conversion, '-')) pad(conversion.width - std::ssize(before));
  return before + digits;
}

MarkedText printed_number(const Conversion& conversion, const Value& value) {
  const bool is_float = std::string_view("eEfFgG").find(conversion.letter) != std::string_view::npos;
  if (is_float) return MarkedText(printed_float(conversion, *value.number()));
  const BigInteger* big = value.as_big();
  if (big != nullptr) {
    const bool is_negative = big->is_negative();
    return padded(MarkedText(printed_integer(conversion, big->digits.substr(is_negative ? 1 : 0), is_negative)),
                  conversion);
  }
  const int64_t number = value.integer() ? *value.integer() : static_cast<int64_t>(*value.number());
  const uint64_t size = number < 0 ? uint64_t{0} - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
  const char letter = is_decimal_letter(conversion.letter) ? 'd' : conversion.letter;
  std::string digits = fmt::format(fmt::runtime(fmt::format("{{:{}}}", letter)), size);
  return padded(MarkedText(printed_integer(conversion, std::move(digits), number < 0)), conversion);
}

class PercentFormat {
 public:
  PercentFormat(Evaluator& evaluator, const MarkedText& format, const Value& values)
      : evaluator_(evaluator), format_(format), values_(values) {}

  Value run() {
    const std::string& text = format_.bytes();
    const Sequence* tuple = values_.as_sequence();
    if (tuple != nullptr && tuple->kind == SequenceKind::tuple) {
      arguments_ = tuple->items;
    } else {
      arguments_ = {values_};
    }
    while (at_ < text.size()) {
      const size_t percent = std::min(text.find('%', at_), text.size());
      result_.append(format_, at_, percent);
      at_ = percent + 1;
      if (percent < text.size()) convert();
    }
    const bool is_container = values_.as_dict() != nullptr || (tuple != nullptr && tuple->kind != SequenceKind::tuple);
    if (used_ < arguments_.size() && !is_container) {
      evaluator_.fail("not all arguments are converted by the format");
    }
    return evaluator_.text(std::move(result_));
  }

 private:
  char peek() const { return at_ < format_.size() ? format_.bytes()[at_] : '\0'; }
  int64_t take_number() {
    int64_t number = 0;
    while (peek() >= '0' && peek() <= '9') {
      number = number * 10 + (peek() - '0');
      if (number > max_format_width) evaluator_.fail(fmt::format("a width in a format is above {}", max_format_width));
      ++at_;
    }
    return number;
  }
  Value next_value() {
    if (used_ >= arguments_.size()) evaluator_.fail("the format has too few arguments");
    return arguments_[used_++];
  }

  void convert() {
    std::optional<Value> by_name;
    if (peek() == '(') {
      const size_t close = format_.bytes().find(')', at_);
      if (close == std::string::npos || values_.as_dict() == nullptr) evaluator_.fail("the format needs a dict");
      evaluator_.charge(static_cast<int64_t>(values_.as_dict()->entries.size() / 16));
      const Value* found = values_.as_dict()->find(std::string_view(format_.bytes()).substr(at_ + 1, close - at_ - 1));
      if (found == nullptr) evaluator_.fail("the format names a key that the dict does not have");
      by_name = *found;
      at_ = close + 1;
    }
    Conversion conversion;
    while (peek() != '\0' && std::string_view("-+ #0").find(peek()) != std::string_view::npos) {
      if (conversion.flags.find(peek()) == std::string::npos) conversion.flags += peek();
      ++at_;
    }
    conversion.width = take_number();
    if (peek() == '.') {
      ++at_;
      conversion.precision = take_number();
    }
    conversion.letter = peek();
    ++at_;
    if (conversion.letter == '%') return result_.append("%");
    append(conversion, by_name ? *by_name : next_value());
  }

  MarkedText character(const Value& value) {
    if (value.as_text() != nullptr && count_code_points(value.as_text()->bytes()) == 1) return *value.as_text();
    return character_with(evaluator_, value);
  }

  void append(const Conversion& conversion, const Value& value) {
    if (conversion.letter == 's' || conversion.letter == 'r' || conversion.letter == 'a') {
      MarkedText text = to_text(evaluator_, value);
      if (conversion.letter != 's' && value.as_text() != nullptr)
        text = MarkedText(quoted(text.bytes()), text.all_marks());
      if (conversion.precision >= 0 && conversion.precision < count_code_points(text.bytes())) {
        text = text.slice(0, CodePointOffsets(text.bytes()).at(conversion.precision));
      }
      result_.append(padded(std::move(text), conversion));
    } else if (conversion.letter == 'c') {
      result_.append(padded(character(value), conversion));
    } else if (conversion.letter != '\0' &&
               std::string_view("diuxXoeEfFgG").find(conversion.letter) != std::string_view::npos) {
      const bool needs_integer = std::string_view("xXo").find(conversion.letter) != std::string_view::npos;
      const bool is_float = std::string_view("eEfFgG").find(conversion.letter) != std::string_view::npos;
      const bool is_big = value.as_big() != nullptr && is_decimal_letter(conversion.letter);
      const bool fits = value.number() && (is_big     ? true
                                           : is_float ? std::isfinite(*value.number())
                                                      : *value.number() > -9e18 && *value.number() < 9e18);
      if (!fits || (needs_integer && !value.integer())) {
        evaluator_.require_defined(value);
        if (value.number() && !needs_integer) evaluator_.fail("a number does not fit 64 bits");
        evaluator_.fail(fmt::format("a {} cannot be formatted by %{}", value.type_name(), conversion.letter));
      }
      result_.append(printed_number(conversion, value));
    } else {
      evaluator_.fail("the format has a conversion that is not supported");
    }
    evaluator_.check_text(result_.size());
    evaluator_.charge(1);
  }

  Evaluator& evaluator_;
  const MarkedText& format_;
  const Value& values_;
  std::vector<Value> arguments_;
  size_t at_ = 0, used_ = 0;
  MarkedText result_;
};

}  // namespace

Value format_percent(Evaluator& evaluator, const MarkedText& format, const Value& values) {
  return PercentFormat(evaluator, format, values).run();
}

}  // namespace llmtrain::jinja
