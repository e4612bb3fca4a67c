#pragma once
// Tokenizer built from the steps of a tokenizer.json: unnormalized added tokens are cut out, the text between them is
// normalized, normalized added tokens are cut out, the pre-tokenizer splits the rest into words, and the model turns
// each word into tokens.

#include <functional>
#include <memory>
#include <vector>

#include "text/pipeline/added_tokens.hpp"
#include "text/pipeline/normalizer.hpp"
#include "text/pipeline/pre_tokenizer.hpp"
#include "text/pipeline/token_decoder.hpp"
#include "text/pipeline/token_model.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

/// Last step on the tokens of a text: adds special tokens around it and trims white space from offsets.
/// Combines several post-processors of a text: their special tokens nest.
struct PostProcessor {
  std::vector<int32_t> before;
  std::vector<int32_t> after;
  bool trim_offsets = false;
  bool add_prefix_space = false;  ///< True if a single leading space was added and is not the user's: trimming keeps it
};

struct TokenizerSteps {
  std::vector<std::unique_ptr<Normalizer>> normalizers;
  std::vector<std::unique_ptr<PreTokenizer>> pre_tokenizers;
  std::unique_ptr<TokenModel> model;
  AddedTokens added;
  PostProcessor post;
  bool has_decoder = false;  ///< without a decoder, spaces join the tokens
  std::vector<std::unique_ptr<TokenDecoder>> decoders;
};

/// Function that returns the tokens of the main file together with those of the other files.
using AddTokens = std::function<std::vector<AddedToken>(std::vector<AddedToken>, const Vocabulary&)>;

/// Ids of the special tokens, -1 = none, and the files that define the tokenizer.
struct TokenizerOrigin {
  int32_t eos = -1;
  int32_t bos = -1;
  int32_t pad = -1;
  std::vector<TokenizerFile> files;
  std::vector<std::string> warnings = {};  ///< Tokenizer::warnings()
  std::string tokenizer_class = {};        ///< Tokenizer::tokenizer_class()
  bool class_is_stored = false;            ///< the files that are stored would be read as another class
};

std::unique_ptr<Tokenizer> make_pipeline_tokenizer(TokenizerSteps steps, TokenizerOrigin origin);

/// Returns Tokenizer::serialized() of a tokenizer that was read from files.
std::string serialize_origin(const TokenizerOrigin& origin);

}  // namespace llmtrain
