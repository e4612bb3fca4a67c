#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.hpp"

namespace llmtrain {

/// The text of tokens that come one by one: at all times what decode() gives for all of them together, less what it
/// gives for the ones before. Only the last few tokens are decoded, so that a token costs the same however long the
/// text is; where a tokenizer's decoding has no bound (Tokenizer::decode_reach) all of them are, when text() is asked
/// for.
class TextStream {
 public:
  /// `before`: tokens whose text is not wanted, a prompt.
  TextStream(const Tokenizer& tokenizer, std::vector<int32_t> before);

  void add(int32_t token);
  /// Bytes that are no UTF-8 stay as they are.
  const std::string& text() const;
  /// Bytes of text() that no later token changes; the beginning of a character is not among them.
  size_t certain() const;

 private:
  void forget_old_tokens(std::string_view decoded);

  const Tokenizer& tokenizer_;
  size_t reach_;
  std::vector<int32_t> tokens_;  // the latest
  size_t max_tokens_;            // when there are more, old ones are forgotten
  size_t begin_ = 0;             // where in the text of `tokens_` text_[kept_] is
  size_t kept_ = 0;
  mutable std::string text_;
  mutable bool stale_ = false;  // text_ is without the latest tokens
};

}  // namespace llmtrain
