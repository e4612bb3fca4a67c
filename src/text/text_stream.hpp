#pragma once
// Tokens to text one by one, and a text to tokens block by block.

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

/// Encodes one text that arrives in blocks; the ids do not depend on the blocks. Memory is that of the longest stretch
/// without a cut (Tokenizer::find_cut), and at least `block_bytes`; it is that of the whole text if the tokenizer
/// cannot encode blocks separately.
class EncodeStream {
 public:
  explicit EncodeStream(const Tokenizer& tokenizer, size_t block_bytes = size_t{1} << 20);

  /// Appends the ids that are final. Throws EncodeError like Tokenizer::encode; its byte is an offset in the whole
  /// text.
  void add(std::string_view block, std::vector<int32_t>& ids);
  /// Ends the text.
  void finish(std::vector<int32_t>& ids);

 private:
  void encode_until(size_t end, std::vector<int32_t>& ids);
  size_t find_last_cut() const;

  const Tokenizer& tokenizer_;
  size_t block_bytes_;
  std::string held_;
  size_t offset_ = 0;    // offset of held_ in the text
  size_t searched_ = 0;  // no cut lies before this position
};

}  // namespace llmtrain
