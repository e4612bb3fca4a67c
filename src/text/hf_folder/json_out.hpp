#pragma once
// Files of a trained vocabulary, which Transformers and the tokenizers package read.
// Files that let other programs read a char or bytes tokenizer.

#include <string>
#include <vector>

#include "text/bpe_training/bpe_train.hpp"
#include "text/split/pretokenize.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

/// Returns tokenizer.json, byte for byte as the tokenizers package writes the same tokenizer: byte-level BPE, no
/// normalizer, `split` as pre-tokenizer, every special token added. A text begins with `bos`, unless that is empty.
std::string bpe_tokenizer_json(const BpeVocabulary& vocabulary, const SplitPattern& split, const std::string& bos = "");

/// Special tokens that tokenizer_config.json names by their purpose; empty: none.
struct BpeSpecialTokens {
  std::string eos;  ///< ends every text
  std::string bos;
};
std::string bpe_tokenizer_config(const BpeSpecialTokens& tokens);

/// Returns tokenizer.json and tokenizer_config.json of a tokenizer of kind char or bytes: byte-pair encoding without
/// merges, whose vocabulary is the characters, or the bytes in GPT-2's printable form. Ids are the same. EOS is
/// <|endoftext|> and BOS, if there is one, <|startoftext|>; a text that contains these words gives the token there and
/// characters here.
std::vector<TokenizerFile> plain_tokenizer_files(const Tokenizer& tokenizer);

}  // namespace llmtrain
