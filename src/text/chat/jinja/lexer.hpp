#pragma once
// Tokens of a Jinja template, with the settings of Transformers: trim_blocks and lstrip_blocks.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace llmtrain::jinja {

inline constexpr size_t max_template_bytes = size_t{1} << 20;

enum class TokenKind : uint8_t {
  data,
  block_begin,
  block_end,
  print_begin,
  print_end,
  name,
  text,
  integer,
  real,
  symbol,
  end
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;  ///< data, name, value of a string, digits of a number, or symbol
  int line = 1;
};

/// Throws UserError(bad_content) "name:line: message".
[[noreturn]] void fail_at(const std::string& name, int line, std::string_view message);

/// The tokens of a template one after the other; the last one is `end`. Errors are UserError(bad_content)
/// "name:line: message".
class TokenReader {
 public:
  TokenReader(std::string_view source, const std::string& name);

 protected:
  const Token& token() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[at_ + 1]; }  ///< unless token() is `end`
  Token take() { return tokens_[token().kind == TokenKind::end ? at_ : at_++]; }
  bool is_symbol(std::string_view text) const { return token().kind == TokenKind::symbol && token().text == text; }
  bool is_name(std::string_view text) const { return token().kind == TokenKind::name && token().text == text; }
  bool take_symbol(std::string_view text);
  bool take_name(std::string_view text);
  void expect(TokenKind kind, std::string_view description);
  void expect_symbol(std::string_view text);
  void expect_name(std::string_view text);
  std::string expect_identifier();
  [[noreturn]] void fail(std::string_view message) const { fail_at(name_, token().line, message); }
  [[noreturn]] void fail_unexpected(std::string_view expected) const;

 private:
  std::string name_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace llmtrain::jinja
