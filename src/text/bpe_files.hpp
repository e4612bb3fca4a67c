#pragma once
// What a trained vocabulary is kept as: the files that Transformers and the tokenizers package read.

#include <string>

#include "text/bpe_train.hpp"
#include "text/pretokenize.hpp"

namespace llmtrain {

/// tokenizer.json, byte for byte as the tokenizers package writes the same tokenizer: byte-level BPE, no normalizer,
/// `split` as pre-tokenizer, every special token added as such.
std::string bpe_tokenizer_json(const BpeVocabulary& vocabulary, const SplitPattern& split);

/// tokenizer_config.json, which names the special tokens by what they are for; empty: none.
struct BpeSpecialTokens {
  std::string eos;  ///< ends every text
  std::string bos;
};
std::string bpe_tokenizer_config(const BpeSpecialTokens& tokens);

}  // namespace llmtrain
