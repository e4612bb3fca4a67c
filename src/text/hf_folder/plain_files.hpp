#pragma once
// Files that let other programs read a char or bytes tokenizer.

#include <vector>

#include "text/tokenizer.hpp"

namespace llmtrain {

/// Returns tokenizer.json and tokenizer_config.json of a tokenizer of kind char or bytes: byte-pair encoding without
/// merges, whose vocabulary is the characters, or the bytes in GPT-2's printable form. Ids are the same. EOS is
/// <|endoftext|> and BOS, if there is one, <|startoftext|>; a text that contains these words gives the token there and
/// characters here.
std::vector<TokenizerFile> plain_tokenizer_files(const Tokenizer& tokenizer);

}  // namespace llmtrain
