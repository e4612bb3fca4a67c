#include "convert/readers/python_tokens.hpp"

#include <cctype>

#include "core/files/json_reader.hpp"

namespace llmtrain {
namespace {

using Kind = PythonToken::Kind;

bool begins_word(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

class Tokenizer {
 public:
  Tokenizer(std::string_view text, const SettingsBuilder& builder) : text_(text), builder_(builder) {}

  std::vector<PythonToken> run() {
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
  std::vector<PythonToken> tokens_;
  size_t at_ = 0, line_begin_ = 0;
  int line_ = 1, depth_ = 0;
};

}  // namespace

std::vector<PythonToken> read_python_tokens(std::string_view text, const SettingsBuilder& builder) {
  return Tokenizer(text, builder).run();
}

}  // namespace llmtrain
