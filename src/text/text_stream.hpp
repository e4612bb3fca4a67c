#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.hpp"

namespace llmtrain {

/// Text of tokens that arrive one by one: always decode() of all of them, minus decode() of the tokens before. Only the
/// last few tokens are decoded, so that the cost of a token does not depend on the length of the text; if a tokenizer's
/// decoding has no bound (Tokenizer::decode_reach), text() decodes all of them.
class TextStream {
 public:
  /// Begins after the tokens of a prompt, `before`, whose text is omitted.
  TextStream(const Tokenizer& tokenizer, std::vector<int32_t> before);

  void add(int32_t token);
  /// Bytes that are not UTF-8 are kept.
  const std::string& text() const;
  /// Number of bytes of text() that no later token changes; an incomplete character does not count.
  size_t certain() const;

 private:
  void forget_old_tokens(std::string_view decoded);

  const Tokenizer& tokenizer_;
  size_t reach_;
  std::vector<int32_t> tokens_;  // the latest
  size_t max_tokens_;            // limit above which old tokens are dropped
  size_t begin_ = 0;             // offset of text_[kept_] in the text of `tokens_`
  size_t kept_ = 0;
  mutable std::string text_;
  mutable bool stale_ = false;  // text_ lacks the latest tokens
};

}  // namespace llmtrain
