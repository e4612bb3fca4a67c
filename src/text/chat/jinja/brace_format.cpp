// str.format: fields {name.attribute[key]!r:specification}.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "text/chat/jinja/formatting.hpp"
#include "text/chat/jinja/operators.hpp"
#include "text/chat/jinja/printing.hpp"
#include "text/chat/jinja/python_text.hpp"

namespace llmtrain::jinja {
namespace {

bool is_one_of(char c, std::string_view characters) {
  return c != '\0' && characters.find(c) != std::string_view::npos;
}

bool is_index(std::string_view text) {
  return !text.empty() && text.size() < 9 && std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
}

/// Formats a value by [[fill]align][sign][#][0][width][grouping][.precision][type].
class SpecFormat {
 public:
  SpecFormat(Evaluator& evaluator, std::string_view spec) : evaluator_(evaluator), spec_(spec) {}

  MarkedText format(const Value& value) {
    const bool is_number = value.number().has_value();
    if (spec_.empty() || (!is_number && value.as_text() == nullptr)) {
      if (!spec_.empty()) refuse();
      return to_text(evaluator_, value);
    }
    parse(is_number ? '>' : '<');
    if (value.as_text() != nullptr) return padded(formatted_text(*value.as_text()), 0);
    const bool as_integer = (value.integer() || value.as_big() != nullptr) && !is_one_of(type_, "eEfFgG%");
    if (as_integer && type_ == 'c') return padded(character_with(evaluator_, value), 0);
    std::string prefix;
    std::string digits = as_integer ? integer_digits(value, prefix) : float_digits(*value.number());
    if (grouping_ != '\0') group(digits);
    const bool is_negative = as_integer ? *value.number() < 0 : std::signbit(*value.number());
    if (is_negative && digits != "nan" && digits != "NAN") {
      prefix.insert(0, 1, '-');
    } else if (sign_ != '-') {
      prefix.insert(0, 1, sign_);
    }
    const size_t inside = align_ == '=' ? prefix.size() : 0;
    return padded(MarkedText(prefix + digits), inside);
  }

 private:
  [[noreturn]] void refuse() const {
    evaluator_.fail(fmt::format("the format specification '{}' is not supported for this value", spec_));
  }
  char peek() const { return at_ < spec_.size() ? spec_[at_] : '\0'; }
  char take(std::string_view characters) { return is_one_of(peek(), characters) ? spec_[at_++] : '\0'; }
  int64_t take_number() {
    int64_t number = 0;
    for (char digit = take("0123456789"); digit != '\0'; digit = take("0123456789")) {
      number = number * 10 + (digit - '0');
      if (number > max_format_width) evaluator_.fail(fmt::format("a width in a format is above {}", max_format_width));
    }
    return number;
  }

  void parse(char usual_align) {
    constexpr std::string_view aligns = "<>=^";
    size_t after_fill = 0;
    next_code_point(spec_, after_fill);
    const bool has_fill = after_fill < spec_.size() && is_one_of(spec_[after_fill], aligns);
    if (has_fill) fill_ = spec_.substr(0, at_ = after_fill);
    align_ = take(aligns);
    if (const char sign = take("+- ")) sign_ = sign;
    is_alternate_ = take("#") != '\0';
    if (!has_fill && take("0") != '\0') {
      fill_ = "0";
      if (align_ == '\0' && usual_align == '>') align_ = '=';
    }
    if (align_ == '\0') align_ = usual_align;
    width_ = take_number();
    grouping_ = take(",_");
    if (take(".") != '\0') {
      if (!is_one_of(peek(), "0123456789")) refuse();
      precision_ = take_number();
    }
    type_ = at_ < spec_.size() ? spec_[at_++] : '\0';
    if (at_ < spec_.size()) refuse();
    if (grouping_ != '\0' && align_ == '=' && width_ > 0) refuse();
  }

  MarkedText formatted_text(const MarkedText& text) const {
    const bool is_plain = sign_ == '-' && spec_.find('-') == std::string_view::npos && !is_alternate_;
    if (!is_plain || grouping_ != '\0' || align_ == '=' || (type_ != '\0' && type_ != 's')) refuse();
    if (precision_ < 0 || precision_ >= count_code_points(text.bytes())) return text;
    return text.slice(0, CodePointOffsets(text.bytes()).at(precision_));
  }

  std::string integer_digits(const Value& value, std::string& prefix) const {
    const char type = type_ == '\0' ? 'd' : type_;
    if (!is_one_of(type, "dboxX") || precision_ >= 0 || (grouping_ != '\0' && type != 'd')) refuse();
    if (const BigInteger* big = value.as_big()) {
      if (type != 'd') refuse();
      return big->digits.substr(big->is_negative() ? 1 : 0);
    }
    if (is_alternate_ && type != 'd') prefix = std::string("0") + type;
    const int64_t number = *value.integer();
    const uint64_t size = number < 0 ? uint64_t{0} - static_cast<uint64_t>(number) : static_cast<uint64_t>(number);
    return fmt::format(fmt::runtime(fmt::format("{{:{}}}", type)), size);
  }

  std::string float_digits(double number) const {
    const double size = std::abs(number);
    if (is_alternate_ || (type_ != '\0' && !is_one_of(type_, "eEfFgG%"))) refuse();
    if (type_ == '\0' && precision_ >= 0) refuse();  // Python has rules of its own for it
    const bool is_upper = is_one_of(type_, "EFG");
    if (std::isnan(size)) return is_upper ? "NAN" : "nan";
    if (std::isinf(size)) return std::string(is_upper ? "INF" : "inf") + (type_ == '%' ? "%" : "");
    if (type_ == '\0') return float_text(size);
    std::array<char, 2048> buffer{};
    const std::string format = std::string("%.*") + (type_ == '%' ? 'f' : type_);
    const int precision = precision_ < 0 ? 6 : static_cast<int>(precision_);
    std::snprintf(buffer.data(), buffer.size(), format.c_str(), precision, type_ == '%' ? size * 100 : size);
    return std::string(buffer.data()) + (type_ == '%' ? "%" : "");
  }

  /// Separates groups of three digits before the point.
  void group(std::string& digits) const {
    const size_t end = std::min(digits.find_first_not_of("0123456789"), digits.size());
    for (size_t at = end; at > 3;) digits.insert(at -= 3, 1, grouping_);
  }

  /// Fills up to the width; where the alignment is =, after the first `inside` bytes.
  MarkedText padded(const MarkedText& text, size_t inside) const {
    const int64_t missing = width_ - count_code_points(text.bytes());
    if (missing <= 0) return text;
    const int64_t before = align_ == '<' ? 0 : align_ == '^' ? missing / 2 : missing;
    MarkedText result = text.slice(0, inside);
    for (int64_t i = 0; i < before; ++i) result.append(fill_);
    result.append(text, inside, text.size());
    for (int64_t i = before; i < missing; ++i) result.append(fill_);
    return result;
  }

  Evaluator& evaluator_;
  std::string_view spec_;
  size_t at_ = 0;
  std::string fill_ = " ";
  char align_ = '\0', sign_ = '-', grouping_ = '\0', type_ = '\0';
  bool is_alternate_ = false;
  int64_t width_ = 0, precision_ = -1;
};

/// Finds the values of fields.
class FieldValues {
 public:
  FieldValues(Evaluator& evaluator, const Arguments& arguments) : evaluator_(evaluator), arguments_(arguments) {}

  /// `name` is that of an argument, its place or empty, with attributes and keys after it.
  Value find(std::string_view name) {
    const size_t end = std::min(name.find_first_of(".["), name.size());
    Value value = argument(name.substr(0, end));
    for (std::string_view rest = name.substr(end); !rest.empty();) {
      const bool is_attribute = rest.front() == '.';
      const size_t stop = is_attribute ? std::min(rest.find_first_of(".[", 1), rest.size()) : rest.find(']');
      if ((!is_attribute && rest.front() != '[') || stop == std::string_view::npos || stop < 2) {
        evaluator_.fail(fmt::format("the field {{{}}} of a format is malformed", name));
      }
      const std::string key(rest.substr(1, stop - 1));
      const Value index = is_index(key) ? Value(int64_t{std::stol(key)}) : Value::text(key);
      value = is_attribute ? evaluator_.attribute(value, key) : evaluator_.item(value, index);
      rest.remove_prefix(is_attribute ? stop : stop + 1);
    }
    return value;
  }

 private:
  Value argument(std::string_view name) {
    const Value* value = nullptr;
    if (name.empty() || is_index(name)) {
      (name.empty() ? counts_ : numbers_) = true;
      if (counts_ && numbers_) evaluator_.fail("a format has fields with numbers and fields without");
      const size_t place = name.empty() ? next_++ : std::stoul(std::string(name));
      if (place < arguments_.positional.size()) value = &arguments_.positional[place];
    }
    for (const auto& [known, given] : arguments_.named) {
      if (known == name) value = &given;
    }
    if (value == nullptr) evaluator_.fail(fmt::format("the field {{{}}} of a format has no value", name));
    return *value;
  }

  Evaluator& evaluator_;
  const Arguments& arguments_;
  size_t next_ = 0;
  bool counts_ = false, numbers_ = false;
};

/// Returns str(), repr() or ascii() of a value.
Value converted(Evaluator& evaluator, const Value& value, char conversion) {
  if (!is_one_of(conversion, "sra")) evaluator.fail("a conversion in a format must be !s, !r or !a");
  MarkedText text = to_text(evaluator, value);
  if (conversion != 's' && value.is_undefined()) text = MarkedText("Undefined");
  if (conversion != 's' && value.as_text() != nullptr) text = MarkedText(quoted(text.bytes()), text.all_marks());
  if (conversion == 'a' && static_cast<size_t>(count_code_points(text.bytes())) != text.size()) {
    evaluator.fail("the conversion !a is supported for ASCII alone");
  }
  return text;
}

}  // namespace

MarkedText character_with(Evaluator& evaluator, const Value& number) {
  const std::optional<int64_t> code = number.integer();
  if (!code || *code < 0 || *code > 0x10FFFF || (*code >= 0xD800 && *code < 0xE000)) {
    evaluator.fail("%c and {:c} need the number of a character");
  }
  std::string text;
  append_code_point(text, static_cast<char32_t>(*code));
  return MarkedText(std::move(text));
}

Value format_braces(Evaluator& evaluator, const MarkedText& format, const Arguments& arguments) {
  const std::string& text = format.bytes();
  FieldValues values(evaluator, arguments);
  MarkedText result;
  for (size_t at = 0; at < text.size();) {
    const size_t brace = std::min(text.find_first_of("{}", at), text.size());
    result.append(format, at, brace);
    at = brace + 1;
    if (brace == text.size()) break;
    if (at < text.size() && text[at] == text[brace]) {
      result.append(text.substr(at++, 1));
      continue;
    }
    const size_t close = text.find('}', at);
    if (text[brace] == '}' || close == std::string::npos) evaluator.fail("a single brace in a format");
    std::string_view field = std::string_view(text).substr(at, close - at), spec;
    if (field.find('{') != std::string_view::npos) evaluator.fail("a field inside of a field is not supported");
    at = close + 1;
    const size_t bracket = field.find('['), after = bracket == std::string_view::npos ? 0 : field.rfind(']');
    const size_t end = field.find_first_of("!:", std::min(after, field.size()));
    const std::string_view name = field.substr(0, end);
    Value value = values.find(name);
    if (end != std::string_view::npos && field[end] == '!') {
      const bool ends = end + 2 == field.size() || (end + 2 < field.size() && field[end + 2] == ':');
      if (!ends) evaluator.fail("a conversion in a format must be !s, !r or !a");
      value = converted(evaluator, value, field[end + 1]);
      field.remove_prefix(end + 2);
      spec = field.empty() ? field : field.substr(1);
    } else if (end != std::string_view::npos) {
      spec = field.substr(end + 1);
    }
    result.append(SpecFormat(evaluator, spec).format(value));
    evaluator.check_text(result.size());
    evaluator.charge(1);
  }
  return evaluator.text(std::move(result));
}

}  // namespace llmtrain::jinja
