// Settings in Python: assignments of literals and calls with literal arguments. Nothing is executed.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>

#include "convert/settings.hpp"
#include "core/error.hpp"
#include "core/files/json_reader.hpp"

namespace llmtrain {

namespace {

/// A token of Python: a word (name or keyword), a number, a text (its value), a symbol, or the end of a statement.
struct Token {
  enum class Kind : uint8_t { word, number, text, symbol, newline, end };
  Kind kind;
  std::string text;
  int line;
  bool is(std::string_view symbol) const { return kind == Kind::symbol && text == symbol; }
};

bool begins_word(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// Splits the text into tokens; the last one is the end. Formatted and byte texts, indented statements and unknown
/// characters are errors of the builder.
class Tokenizer {
  using Kind = Token::Kind;

 public:
  Tokenizer(std::string_view text, const SettingsBuilder& builder) : text_(text), builder_(builder) {}

  std::vector<Token> run() {
    while (at_ < text_.size()) step();
    add(Kind::newline, "");
    add(Kind::end, "");
    return std::move(tokens_);
  }

 private:
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  void add(Kind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }
  bool statement_begins() const { return tokens_.empty() || tokens_.back().kind == Kind::newline; }

  void step() {
    const char c = peek();
    if (c == '\n') return end_line();
    if (c == ' ' || c == '\t' || c == '\r' || c == '\f') return skip_blanks();
    if (c == '#') {
      while (at_ < text_.size() && peek() != '\n') ++at_;
    } else if (c == '\\' && (peek(1) == '\n' || (peek(1) == '\r' && peek(2) == '\n'))) {
      at_ += peek(1) == '\n' ? 2 : 3;
      ++line_;
    } else if (begins_word(c)) {
      word();
    } else if (is_digit(c) || (c == '.' && is_digit(peek(1)))) {
      number();
    } else if (c == '"' || c == '\'') {
      quoted(false);
    } else {
      symbol(c);
    }
  }

  void end_line() {
    if (depth_ == 0 && !statement_begins()) add(Kind::newline, "");
    ++line_;
    ++at_;
    line_begin_ = at_;
  }

  void skip_blanks() {
    const bool at_start = at_ == line_begin_;
    while (peek() == ' ' || peek() == '\t' || peek() == '\r' || peek() == '\f') ++at_;
    const bool blank = peek() == '\n' || peek() == '#' || at_ == text_.size();
    if (at_start && depth_ == 0 && !blank && statement_begins()) {
      builder_.fail(line_, "an indented statement; only assignments of values and calls with values are read");
    }
  }

  void word() {
    const size_t begin = at_;
    while (begins_word(peek()) || is_digit(peek())) ++at_;
    const std::string name(text_.substr(begin, at_ - begin));
    if (peek() != '"' && peek() != '\'') return add(Kind::word, name);
    if (name != "r" && name != "R" && name != "u") {
      builder_.fail(line_, "a text with the prefix " + printable(name) + "; write a plain text");
    }
    quoted(name != "u");
  }

  void number() {
    const size_t begin = at_;
    while (is_digit(peek()) || begins_word(peek()) || peek() == '.' ||
           ((peek() == '-' || peek() == '+') && (text_[at_ - 1] == 'e' || text_[at_ - 1] == 'E'))) {
      ++at_;
    }
    add(Kind::number, std::string(text_.substr(begin, at_ - begin)));
  }

  void symbol(char c) {
    if (std::string_view("()[]{}=,:.+-*/").find(c) == std::string_view::npos) {
      builder_.fail(line_,
                    "'" + printable(std::string(1, c)) + "'; only literal values, assignments and calls are read");
    }
    if (c == '(' || c == '[' || c == '{') builder_.check_depth(++depth_, line_);
    if (c == ')' || c == ']' || c == '}') --depth_;
    if (depth_ < 0) builder_.fail(line_, "a bracket that was not opened");
    add(Kind::symbol, std::string(1, c));
    ++at_;
  }

  void quoted(bool raw) {
    const int first_line = line_;
    const std::string_view rest = text_.substr(at_);
    const std::string mark(rest.starts_with("\"\"\"") || rest.starts_with("'''") ? rest.substr(0, 3)
                                                                                 : rest.substr(0, 1));
    at_ += mark.size();
    std::string value;
    while (!text_.substr(at_).starts_with(mark)) {
      if (at_ == text_.size() || (peek() == '\n' && mark.size() == 1)) {
        builder_.fail(first_line, "a text without its closing quotation mark");
      }
      if (peek() == '\n') ++line_;
      if (peek() == '\\' && !raw) {
        escape(value);
      } else {
        value += text_[at_++];
      }
    }
    at_ += mark.size();
    tokens_.push_back({Kind::text, value, first_line});
  }

  void escape(std::string& value) {
    const char c = peek(1);
    constexpr std::string_view names = "ntr\\'\"", values = "\n\t\r\\'\"";
    const size_t known = names.find(c);
    if (c == '\0' || known == std::string_view::npos) {
      builder_.fail(line_, "the escape \\" + printable(std::string(1, c)) + " in a text; write the character");
    }
    value += values[known];
    at_ += 2;
  }

  std::string_view text_;
  const SettingsBuilder& builder_;
  std::vector<Token> tokens_;
  size_t at_ = 0, line_begin_ = 0;
  int line_ = 1, depth_ = 0;
};

using Kind = SettingValue::Kind;

class Reader {
 public:
  Reader(std::string_view text, const std::string& file) : builder_(file), tokens_(Tokenizer(text, builder_).run()) {}

  SettingValue run() {
    while (token().kind != Token::Kind::end) {
      if (token().kind != Token::Kind::newline) statement();
      if (token().kind != Token::Kind::newline) fail_unexpected();
      ++at_;
    }
    return std::move(root_);
  }

 private:
  const Token& token(size_t ahead = 0) const { return tokens_[std::min(at_ + ahead, tokens_.size() - 1)]; }
  bool take(std::string_view symbol) {
    if (!token().is(symbol)) return false;
    ++at_;
    return true;
  }
  void require(std::string_view symbol) {
    if (!take(symbol)) fail_unexpected();
  }
  [[noreturn]] void fail_unexpected() const {
    const std::string what =
        token().kind == Token::Kind::newline ? "the end of the line" : "'" + printable(token().text) + "'";
    builder_.fail(token().line, what +
                                    ": only assignments of literal values and calls with literal arguments are read, "
                                    "and nothing is executed; write the value itself");
  }

  void statement() {
    if (token().kind == Token::Kind::text) {  // a documentation text
      ++at_;
      return;
    }
    if (token().kind != Token::Kind::word) fail_unexpected();
    if (token().text == "import" || token().text == "from") return skip_import();
    refuse_keyword();
    const int line = token().line;
    const std::string name = dotted_name();
    if (token().is("(")) {  // a call whose result is not kept
      builder_.add(root_, fmt::format("@{}", line), call(name, line, 1));
      return;
    }
    require("=");
    SettingValue value = assigned_value();
    value.line = line;
    const size_t dot = name.rfind('.');
    SettingValue& map = dot == std::string::npos ? root_ : builder_.map_at(root_, name.substr(0, dot), line);
    builder_.add(map, dot == std::string::npos ? name : name.substr(dot + 1), std::move(value));
  }

  /// The value after `=`; where that is not a literal, the reason.
  SettingValue assigned_value() {
    if (token().is("=")) fail_unexpected();
    try {
      SettingValue value = product(1);
      if (token().kind != Token::Kind::newline) fail_unexpected();
      return value;
    } catch (const UserError& error) {
      while (token().kind != Token::Kind::newline) ++at_;
      return SettingValue::scalar(Kind::unreadable, error.what(), 0);
    }
  }

  void skip_import() {
    while (token().kind != Token::Kind::newline) ++at_;
  }

  void refuse_keyword() const {
    constexpr std::array<std::string_view, 19> keywords = {
        "if",  "for",    "while", "def",  "class", "with",  "try",   "return", "lambda", "assert",
        "del", "global", "raise", "pass", "async", "await", "yield", "match",  "exec"};
    if (std::ranges::find(keywords, token().text) == keywords.end()) return;
    builder_.fail(token().line, "the statement `" + token().text +
                                    "`: only assignments of literal values and calls with "
                                    "literal arguments are read, and nothing is executed");
  }

  std::string dotted_name() {
    std::string name = token().text;
    ++at_;
    while (token().is(".") && token(1).kind == Token::Kind::word) {
      name += "." + token(1).text;
      at_ += 2;
    }
    return name;
  }

  /// A value, or a product of numbers: nanoGPT writes 5 * 8.
  SettingValue product(int depth) {
    SettingValue left = unary(depth);
    while (take("*")) {
      const SettingValue right = unary(depth);
      const std::optional<double> a = left.number(), b = right.number();
      if (!left.is(Kind::number) || !right.is(Kind::number) || !a || !b) {
        builder_.fail(right.line, "'*' of other values than numbers; write the value itself");
      }
      if (!std::isfinite(*a * *b)) builder_.fail(right.line, "the number is not finite");
      left = SettingValue::scalar(Kind::number, fmt::format("{}", *a * *b), right.line);
    }
    return left;
  }

  SettingValue unary(int depth) {
    const bool minus = token().is("-");
    if (!minus && !token().is("+")) return primary(depth);
    const int line = token().line;
    ++at_;
    if (token().kind != Token::Kind::number) fail_unexpected();
    SettingValue value = primary(depth);
    return SettingValue::scalar(Kind::number, (minus ? "-" : "") + value.text, line);
  }

  SettingValue primary(int depth) {
    const int line = token().line;
    builder_.count(line);
    builder_.check_depth(depth, line);
    switch (token().kind) {
      case Token::Kind::number:
        return number();
      case Token::Kind::text:
        return text();
      case Token::Kind::word:
        return word(depth);
      default:
        if (take("[")) return list("]", depth);
        if (take("(")) return parenthesised(depth);
        if (take("{")) return dictionary(line, depth);
        fail_unexpected();
    }
  }

  SettingValue number() {
    SettingValue value = SettingValue::scalar(Kind::number, token().text, token().line);
    if (!value.number()) builder_.fail(value.line, printable(value.text) + ": must be a decimal number");
    ++at_;
    return value;
  }

  SettingValue text() {
    SettingValue value = SettingValue::scalar(Kind::text, "", token().line);
    for (; token().kind == Token::Kind::text; ++at_) value.text += token().text;
    return value;
  }

  SettingValue word(int depth) {
    const int line = token().line;
    refuse_keyword();
    const std::string name = dotted_name();
    if (token().is("(")) return call(name, line, depth);
    if (name == "True" || name == "False")
      return SettingValue::scalar(Kind::boolean, name == "True" ? "true" : "false", line);
    if (name == "None") return SettingValue::scalar(Kind::null, "", line);
    return reference(name, line);
  }

  /// The value of a name that was assigned before, or the name.
  SettingValue reference(const std::string& name, int line) {
    const SettingValue* at = &root_;
    for (size_t begin = 0; begin <= name.size() && at != nullptr;) {
      const size_t end = std::min(name.find('.', begin), name.size());
      at = at->find(std::string_view(name).substr(begin, end - begin));
      begin = end + 1;
    }
    if (at == nullptr || at->is(Kind::map) || at->is(Kind::list))
      return SettingValue::scalar(Kind::reference, name, line);
    SettingValue value = *at;
    value.line = line;
    return value;
  }

  SettingValue list(std::string_view closing, int depth) {
    SettingValue out = SettingValue::scalar(Kind::list, "", token().line);
    while (!take(closing)) {
      out.items.push_back(product(depth + 1));
      if (!token().is(closing)) require(",");
    }
    return out;
  }

  SettingValue parenthesised(int depth) {
    if (take(")")) return SettingValue::scalar(Kind::list, "", token().line);
    SettingValue first = product(depth + 1);
    if (take(")")) return first;
    require(",");
    SettingValue rest = list(")", depth);
    rest.items.insert(rest.items.begin(), std::move(first));
    return rest;
  }

  SettingValue dictionary(int line, int depth) {
    SettingValue out = SettingValue::scalar(Kind::map, "", line);
    while (!take("}")) {
      const int key_line = token().line;
      if (token().kind != Token::Kind::text) fail_unexpected();
      const std::string key = text().text;
      require(":");
      SettingValue value = product(depth + 1);
      value.line = key_line;
      builder_.add(out, key, std::move(value));
      if (!token().is("}")) require(",");
    }
    return out;
  }

  SettingValue call(const std::string& name, int line, int depth) {
    SettingValue out = SettingValue::scalar(Kind::map, "", line);
    out.callee = name;
    require("(");
    while (!take(")")) {
      const bool named = token().kind == Token::Kind::word && token(1).is("=");
      const std::string argument = token().text;
      const int argument_line = token().line;
      if (named) at_ += 2;
      SettingValue value = product(depth + 1);
      if (named) {
        value.line = argument_line;
        builder_.add(out, argument, std::move(value));
      } else {
        out.items.push_back(std::move(value));
      }
      if (!token().is(")")) require(",");
    }
    return out;
  }

  SettingsBuilder builder_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  SettingValue root_ = SettingValue::scalar(Kind::map, "", 1);
};

}  // namespace

SettingValue read_python_settings(std::string_view text, const std::string& file) { return Reader(text, file).run(); }

}  // namespace llmtrain
