#pragma once
// The special tokens around a text.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "text/tokenizer.hpp"

namespace llmtrain {

/// How a text becomes a document.
struct TokensAround {
  bool of_tokenizer = true;  ///< what the tokenizer puts around a text, such as BOS
  bool add_bos = false;      ///< BOS, which the tokenizer must have
  bool ends = true;          ///< EOS, if there is one; without it a prompt stays open
};

/// Puts special tokens around the ids of a text of `bytes` bytes; `ranges` are the bytes of its tokens, or null where
/// `prompt` is 0. A BOS or EOS that the text itself begins or ends with is the only one there, as in TRL. An EOS of the
/// first `prompt` bytes does not end the text.
void put_tokens_around(const Tokenizer& tokenizer, const TokensAround& around, size_t bytes, size_t prompt,
                       std::vector<int32_t>& ids, std::vector<TextRange>* ranges);

}  // namespace llmtrain
