#include "text/chat/jinja/lexer.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/error.hpp"
#include "core/utf8.hpp"
#include "text/chat/jinja/python_text.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain::jinja {

void fail_at(const std::string& name, int line, std::string_view message) {
  throw UserError(ExitCode::bad_content, fmt::format("{}:{}: {}", name, line, message));
}

namespace {

/// Returns the text with \n as the only line end, without one at its end.
std::string with_plain_line_ends(std::string_view source) {
  std::string text;
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else if (i + 1 == source.size() || source[i + 1] != '\n') {
      text += '\n';
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_character(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80) != 0;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name) : text_(with_plain_line_ends(source)), name_(name) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) read_data();
    add(TokenKind::end, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(std::string_view message) { fail_at(name_, line_at(at_), message); }

  int line_at(size_t position) {
    line_ += static_cast<int>(std::count(text_.begin() + static_cast<std::ptrdiff_t>(counted_),
                                         text_.begin() + static_cast<std::ptrdiff_t>(position), '\n'));
    counted_ = position;
    return line_;
  }
  void add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_at(at_)}); }

  bool starts_with(std::string_view what) const { return std::string_view(text_).substr(at_).starts_with(what); }
  bool take(std::string_view what) {
    if (!starts_with(what)) return false;
    at_ += what.size();
    return true;
  }
  void skip_spaces() { at_ = skip_python_spaces(text_, at_); }

  /// Takes the end of a tag: "-" removes the white space after it, "+" keeps the line end that is removed otherwise.
  bool take_end(std::string_view end, bool trims) {
    if (starts_with("-" + std::string(end))) {
      at_ += 1 + end.size();
      skip_spaces();
      return true;
    }
    if (trims && starts_with("+" + std::string(end))) {
      at_ += 1 + end.size();
      return true;
    }
    if (!take(end)) return false;
    if (trims) take("\n");
    return true;
  }

  /// Adds the text [begin, end) before a tag with this sign.
  void add_data(size_t begin, size_t end, char sign, bool is_print) {
    if (sign == '-') {
      end = strip_python_spaces_right(text_, begin, end);
    } else if (sign != '+' && !is_print) {
      const size_t newline = std::string_view(text_).substr(begin, end - begin).rfind('\n');
      const bool has_line = newline != std::string_view::npos;
      const size_t line = has_line ? begin + newline + 1 : begin;
      if ((has_line || line_starts_) && skip_python_spaces(text_, line) >= end) end = line;
    }
    if (begin < end) tokens_.push_back({TokenKind::data, text_.substr(begin, end - begin), line_at(begin)});
  }

  char take_sign() {
    const char sign = at_ < text_.size() ? text_[at_] : '\0';
    if (sign != '-' && sign != '+') return '\0';
    ++at_;
    return sign;
  }

  void read_data() {
    size_t open = text_.find('{', at_);
    while (open != std::string::npos &&
           (open + 1 == text_.size() || std::string_view("%{#").find(text_[open + 1]) == std::string_view::npos)) {
      open = text_.find('{', open + 1);
    }
    if (open == std::string::npos) {
      tokens_.push_back({TokenKind::data, text_.substr(at_), line_at(at_)});
      at_ = text_.size();
      return;
    }
    const size_t begin = at_;
    const char type = text_[open + 1];
    at_ = open + 2;
    const char sign = take_sign();
    const size_t inside = at_;
    add_data(begin, open, sign, type == '{');
    at_ = inside;
    if (type == '#') {
      read_comment();
    } else if (type == '{') {
      read_tag(TokenKind::print_begin, TokenKind::print_end, "}}", false);
    } else if (!read_raw()) {
      read_tag(TokenKind::block_begin, TokenKind::block_end, "%}", true);
    }
    line_starts_ = text_[at_ - 1] == '\n';
  }

  void read_comment() {
    size_t end = text_.find("#}", at_);
    if (end == std::string::npos) fail("the comment has no end #}");
    if (end > at_ && (text_[end - 1] == '-' || text_[end - 1] == '+')) --end;
    at_ = end;
    take_end("#}", true);
  }

  /// Reads a raw block with its end, if one begins here.
  bool read_raw() {
    const size_t begin = at_;
    skip_spaces();
    if (!take("raw") || (skip_spaces(), !take_end("%}", false))) {
      at_ = begin;
      return false;
    }
    line_starts_ = text_[at_ - 1] == '\n';
    const size_t inside = at_;
    for (size_t open = text_.find("{%", inside); open != std::string::npos; open = text_.find("{%", open + 2)) {
      at_ = open + 2;
      const char sign = take_sign();
      skip_spaces();
      if (take("endraw") && (skip_spaces(), take_end("%}", true))) {
        const size_t after = at_;
        add_data(inside, open, sign, false);
        at_ = after;
        return true;
      }
    }
    at_ = inside;
    fail("the raw block has no end {% endraw %}");
  }

  void read_tag(TokenKind begin, TokenKind end, std::string_view close, bool trims) {
    add(begin, "");
    std::string open_brackets;
    for (;;) {
      skip_spaces();
      if (at_ >= text_.size()) fail(fmt::format("the tag has no end {}", close));
      const size_t before = at_;
      if (open_brackets.empty() && take_end(close, trims)) {
        const size_t after = at_;
        at_ = before;
        add(end, "");
        at_ = after;
        return;
      }
      read_token(open_brackets);
    }
  }

  void read_token(std::string& open_brackets) {
    const char c = text_[at_];
    if (is_digit(c)) return read_number();
    if (is_name_character(c)) return read_name();
    if (c == '"' || c == '\'') return read_string(c);
    static constexpr std::string_view symbols[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                                   "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                                   ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    const auto* const symbol =
        std::find_if(std::begin(symbols), std::end(symbols), [&](std::string_view s) { return starts_with(s); });
    if (symbol == std::end(symbols)) fail(fmt::format("the character '{}' has no meaning in a tag", c));
    if (*symbol == "(" || *symbol == "[" || *symbol == "{") {
      open_brackets += *symbol == "(" ? ')' : *symbol == "[" ? ']' : '}';
    } else if (*symbol == ")" || *symbol == "]" || *symbol == "}") {
      if (open_brackets.empty() || open_brackets.back() != symbol->front())
        fail(fmt::format("unexpected '{}'", *symbol));
      open_brackets.pop_back();
    }
    add(TokenKind::symbol, std::string(*symbol));
    at_ += symbol->size();
  }

  void read_name() {
    size_t end = at_;
    while (end < text_.size() && is_name_character(text_[end])) ++end;
    add(TokenKind::name, text_.substr(at_, end - at_));
    at_ = end;
  }

  std::string take_digits(std::string_view digits) {
    std::string found;
    while (at_ < text_.size() && (digits.find(text_[at_]) != std::string_view::npos || text_[at_] == '_')) {
      if (text_[at_] != '_') found += text_[at_];
      ++at_;
    }
    return found;
  }

  void read_number() {
    static constexpr std::string_view decimal = "0123456789";
    const size_t begin = at_;
    const int line = line_at(at_);
    const auto digit_at = [&](size_t i) { return i < text_.size() && is_digit(text_[i]); };
    static constexpr struct {
      std::string_view prefix, digits;
    } bases[] = {{"0x", "0123456789abcdefABCDEF"}, {"0o", "01234567"}, {"0b", "01"}};
    for (const auto& base : bases) {
      if (!starts_with(base.prefix)) continue;
      at_ += 2;
      tokens_.push_back({TokenKind::integer, std::string(base.prefix) + take_digits(base.digits), line});
      return;
    }
    std::string number = take_digits(decimal);
    TokenKind kind = TokenKind::integer;
    const bool after_dot = begin > 0 && text_[begin - 1] == '.';
    if (!after_dot && at_ < text_.size() && text_[at_] == '.' && digit_at(at_ + 1)) {
      ++at_;
      number += "." + take_digits(decimal);
      kind = TokenKind::real;
    }
    if (!after_dot && at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      const bool has_sign = at_ + 1 < text_.size() && (text_[at_ + 1] == '+' || text_[at_ + 1] == '-');
      if (digit_at(at_ + (has_sign ? 2 : 1))) {
        number += text_.substr(at_, has_sign ? 2 : 1);
        at_ += has_sign ? 2 : 1;
        number += take_digits(decimal);
        kind = TokenKind::real;
      }
    }
    tokens_.push_back({kind, std::move(number), line});
  }

  void read_string(char quote) {
    const int line = line_at(at_);
    std::string value;
    for (++at_; at_ < text_.size() && text_[at_] != quote;) {
      if (text_[at_] == '\\') {
        ++at_;
        read_escape(value);
      } else {
        value += text_[at_++];
      }
    }
    if (at_ >= text_.size()) fail("the string has no end");
    ++at_;
    tokens_.push_back({TokenKind::text, std::move(value), line});
  }

  void read_escape(std::string& value) {
    static constexpr std::string_view letters = "\\'\"abfnrtv", meanings = "\\'\"\a\b\f\n\r\t\v";
    if (at_ >= text_.size()) fail("the string has no end");
    const char c = text_[at_++];
    if (const size_t found = letters.find(c); found != std::string_view::npos) {
      value += meanings[found];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      append_character(value, take_code(c == 'x' ? 2 : c == 'u' ? 4 : 8, 16));
    } else if (c >= '0' && c <= '7') {
      --at_;
      size_t digits = 1;
      while (digits < 3 && at_ + digits < text_.size() && text_[at_ + digits] >= '0' && text_[at_ + digits] <= '7')
        ++digits;
      append_character(value, take_code(digits, 8));
    } else if (c == 'N') {
      fail("\\N in a string is not supported: write the character itself");
    } else if (c != '\n') {
      value += '\\';
      --at_;
      value += text_[at_++];
    }
  }

  uint32_t take_code(size_t digits, uint32_t base) {
    uint32_t code = 0;
    for (size_t i = 0; i < digits; ++i, ++at_) {
      const std::string_view all = "0123456789abcdef";
      const char c = at_ < text_.size() ? text_[at_] : '\0';
      const size_t digit = all.find(c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c);
      if (digit >= base) fail("an escape in a string has too few digits");
      code = code * base + static_cast<uint32_t>(digit);
    }
    return code;
  }

  void append_character(std::string& value, uint32_t code) {
    if (code >= code_point_limit || (code >= 0xD800 && code < 0xE000)) fail("an escape in a string is not a character");
    append_code_point(value, code);
  }

  const std::string text_;
  const std::string& name_;
  size_t at_ = 0, counted_ = 0;
  int line_ = 1;
  bool line_starts_ = true;  // nothing but a line end, or nothing, is before at_
  std::vector<Token> tokens_;
};

}  // namespace

TokenReader::TokenReader(std::string_view source, const std::string& name) : name_(name) {
  if (source.size() > max_template_bytes) {
    fail_at(name, 1, fmt::format("the template has {} bytes; at most {} are read", source.size(), max_template_bytes));
  }
  if (find_invalid_utf8(source) != std::string_view::npos) fail_at(name, 1, "the template is not UTF-8");
  tokens_ = Lexer(source, name).run();
}

bool TokenReader::take_symbol(std::string_view text) {
  const bool found = is_symbol(text);
  if (found) take();
  return found;
}

bool TokenReader::take_name(std::string_view text) {
  const bool found = is_name(text);
  if (found) take();
  return found;
}

void TokenReader::fail_unexpected(std::string_view expected) const {
  static constexpr const char* ends[] = {"text", "{%", "the end of the tag", "{{", "the end of the tag"};
  const auto kind = static_cast<size_t>(token().kind);
  const std::string found = token().kind == TokenKind::end ? "the end of the template"
                            : kind < std::size(ends)       ? std::string(ends[kind])
                                                           : "'" + token().text + "'";
  fail(fmt::format("{} is expected, not {}", expected, found));
}

void TokenReader::expect(TokenKind kind, std::string_view description) {
  if (token().kind != kind) fail_unexpected(description);
  take();
}

void TokenReader::expect_symbol(std::string_view text) {
  if (!take_symbol(text)) fail_unexpected(fmt::format("'{}'", text));
}

void TokenReader::expect_name(std::string_view text) {
  if (!take_name(text)) fail_unexpected(fmt::format("'{}'", text));
}

std::string TokenReader::expect_identifier() {
  if (token().kind != TokenKind::name) fail_unexpected("a name");
  return take().text;
}

}  // namespace llmtrain::jinja
