#pragma once
// char and bytes as files that other programs read.

#include <vector>

#include "text/tokenizer.hpp"

namespace llmtrain {

/// tokenizer.json and tokenizer_config.json of a tokenizer of kind char or bytes: byte-pair encoding without merges,
/// whose vocabulary is the characters, or the bytes in GPT-2's printable form. Ids are the same. EOS is <|endoftext|>,
/// BOS, where there is one, <|startoftext|>; a text that holds these very words gives the token there and characters
/// here.
std::vector<TokenizerFile> plain_tokenizer_files(const Tokenizer& tokenizer);

}  // namespace llmtrain
