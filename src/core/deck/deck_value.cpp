#include "core/deck/deck_value.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "core/deck/suggestion.hpp"
#include "core/utf8.hpp"

namespace llmtrain {
namespace {

[[noreturn]] void bad(const std::string& what) { throw UserError(ExitCode::deck, what); }

void check_range(double value, std::string_view text, const ValueRange& range) {
  if (!range.contains(value)) bad(fmt::format("'{}' is out of range: must be {}", text, range.text()));
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view blanks = " \t\n";
  const size_t begin = text.find_first_not_of(blanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(blanks) - begin + 1);
}

/// True if an odd number of backslashes precedes the character at `i`.
bool escaped(std::string_view text, size_t i) {
  size_t backslashes = 0;
  while (backslashes < i && text[i - 1 - backslashes] == '\\') ++backslashes;
  return backslashes % 2 == 1;
}

}  // namespace

std::string ValueRange::text() const {
  const bool below = std::isfinite(min), over = std::isfinite(max);
  if (below && over) {
    const std::string note = open_min && open_max ? " (both excluded)"
                             : open_min           ? fmt::format(" ({} excluded)", min)
                             : open_max           ? fmt::format(" ({} excluded)", max)
                                                  : "";
    const auto number = [](double x) {  // 9007199254740992 rather than 9.007199254740992e+15
      return std::abs(x) < 1e15 && x == std::floor(x) ? fmt::format("{}", static_cast<int64_t>(x))
                                                      : fmt::format("{}", x);
    };
    return fmt::format("{} .. {}{}", number(min), number(max), note);
  }
  if (below) return fmt::format("{} {}", open_min ? ">" : ">=", min);
  if (over) return fmt::format("{} {}", open_max ? "<" : "<=", max);
  return "";
}

int64_t parse_count(std::string_view text, const ValueRange& range) {
  static constexpr std::array<std::pair<std::string_view, int64_t>, 7> suffixes = {{{"", 1},
                                                                                    {"K", 1000},
                                                                                    {"M", 1000000},
                                                                                    {"G", 1000000000},
                                                                                    {"KiB", 1LL << 10},
                                                                                    {"MiB", 1LL << 20},
                                                                                    {"GiB", 1LL << 30}}};
  const size_t digits_end = std::min(text.find_first_not_of("-0123456789_"), text.size());
  const std::string_view digits = text.substr(0, digits_end), suffix = text.substr(digits_end);
  std::string plain;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool between_digits = i > 0 && i + 1 < digits.size() && digits[i - 1] != '_' && digits[i - 1] != '-';
    if (digits[i] == '_' && !between_digits)
      bad(fmt::format("'{}' is not a whole number: '_' is only allowed between digits", text));
    if (digits[i] != '_') plain += digits[i];
  }
  int64_t value = 0;
  const auto [end, error] = std::from_chars(plain.data(), plain.data() + plain.size(), value);
  if (error == std::errc::result_out_of_range) bad(fmt::format("'{}' is too large", text));
  if (error != std::errc() || end != plain.data() + plain.size()) bad(fmt::format("'{}' is not a whole number", text));
  int64_t scale = 0;
  for (const auto& [name, factor] : suffixes) {
    if (suffix == name) scale = factor;
  }
  if (scale == 0) {
    bad(fmt::format(
        "'{}' is not a whole number: its digits may be followed by K, M or G (powers of 1000), KiB, MiB or GiB", text));
  }
  if (__builtin_mul_overflow(value, scale, &value)) bad(fmt::format("'{}' is too large", text));
  check_range(static_cast<double>(value), text, range);
  return value;
}

double parse_number(std::string_view text, const ValueRange& range) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc::result_out_of_range) bad(fmt::format("'{}' is outside the range of a double", text));
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    bad(fmt::format("'{}' is not a number", text));
  }
  check_range(value, text, range);
  return value;
}

bool parse_bool(std::string_view text) {
  if (text == "true") return true;
  if (text != "false") bad(fmt::format("'{}' is neither true nor false", text));
  return false;
}

Duration parse_duration(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  const int64_t scale = unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  if (error != std::errc() || scale == 0 || value < 0) {
    bad(fmt::format("'{}' is not a duration: write 90s, 15m or 4h", text));
  }
  if (__builtin_mul_overflow(value, scale, &value)) bad(fmt::format("'{}' is too long", text));
  return {value};
}

std::string parse_text(std::string_view text) {
  if (text.size() >= 2 && text.front() == '"' && text.back() == '"') {
    bad(fmt::format("{} has quotation marks: write the text without them (\\x22 for one that belongs to the text)",
                    text));
  }
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const char next = text[i] == '\\' && i + 1 < text.size() ? text[i + 1] : '\0';
    const int high = next == 'x' && i + 3 < text.size() ? hex_digit(text[i + 2]) : -1;
    const int low = high >= 0 ? hex_digit(text[i + 3]) : -1;
    if (next == 'n') out += '\n';
    if (next == 't') out += '\t';
    if (next == 's') out += ' ';
    if (next == ',' || next == '\\') out += next;
    if (next == 'n' || next == 't' || next == 's' || next == ',' || next == '\\') {
      ++i;
    } else if (low >= 0) {
      out += static_cast<char>(high * 16 + low);
      i += 3;
    } else {
      out += text[i];
    }
  }
  if (out.empty()) bad("has no value");
  if (out.find('\0') != std::string::npos) bad("contains a NUL byte");
  if (find_invalid_utf8(out) != std::string::npos) bad("is not UTF-8");
  return out;
}

std::vector<std::string_view> split_list(std::string_view text) {
  std::vector<std::string_view> items;
  if (trimmed(text).empty()) return items;
  size_t begin = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && (text[i] != ',' || escaped(text, i))) continue;
    const std::string_view item = trimmed(text.substr(begin, i - begin));
    if (item.empty()) bad("has an empty item: write a list as one, two, three");
    const size_t line_end = item.find('\n');
    if (line_end != std::string_view::npos) {
      bad(fmt::format(
          "'{}' continues in an indented line: end it with a comma if the list continues, or begin the next key "
          "in the first column",
          item.substr(0, line_end)));
    }
    items.push_back(item);
    begin = i + 1;
  }
  return items;
}

size_t parse_name(std::string_view text, std::span<const std::string_view> names) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (text == names[i]) return i;
  }
  bad(fmt::format("'{}' is not one of {}{}", text, joined(names), did_you_mean(text, names)));
}

std::string print_number(double value) { return fmt::format("{}", value); }

std::string print_duration(Duration value) {
  const int64_t s = value.seconds;
  if (s != 0 && s % 3600 == 0) return fmt::format("{}h", s / 3600);
  if (s != 0 && s % 60 == 0) return fmt::format("{}m", s / 60);
  return fmt::format("{}s", s);
}

std::string print_text(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool stray_blank = c == ' ' && (i == 0 || i + 1 == text.size() || text[i - 1] == ' ');
    if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (stray_blank) {
      out += "\\s";
    } else if (c == ',' || c == '\\') {
      out += '\\';
      out += text[i];
    } else if (c < 0x20 || c == 0x7F || c == ';' || c == '#' || c == '$' || (c == '"' && i == 0)) {
      out += fmt::format("\\x{:02x}", c);
    } else {
      out += text[i];
    }
  }
  return out;
}

double Fp32Number::parse(std::string_view text, const KeyInfo& info) {
  const double value = parse_number(text, info.range);
  const auto used = static_cast<float>(value);
  const auto refuse = [&](std::string_view what) {
    throw UserError(ExitCode::deck, fmt::format("'{}' is {}", text, what));
  };
  if (!std::isfinite(used)) refuse("too large for fp32, in which it is used: the maximum is 3.4e38");
  if (used == 0 && value != 0) refuse("0 in fp32, in which it is used: write 0, or at least 1.4e-45");
  if (!info.range.contains(used)) {
    refuse(fmt::format("{} in fp32, in which it is used: must be {}", used, info.range.text()));
  }
  return value;
}

}  // namespace llmtrain
