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

/// Splits a template into tokens; the last one is `end`. `name` is for messages. UserError(bad_content).
std::vector<Token> tokenize(std::string_view source, const std::string& name);

}  // namespace llmtrain::jinja
