#pragma once
// A tokenizer made of the steps that a tokenizer.json describes: added tokens that are not normalized are cut out, what
// is between them is normalized, added tokens that are normalized are cut out, the rest is cut into pieces and each
// piece becomes tokens.

#include <functional>
#include <memory>
#include <vector>

#include "text/pipeline/added_tokens.hpp"
#include "text/pipeline/normalizer.hpp"
#include "text/pipeline/post_processor.hpp"
#include "text/pipeline/pre_tokenizer.hpp"
#include "text/pipeline/token_decoder.hpp"
#include "text/pipeline/token_model.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

struct TokenizerParts {
  std::vector<std::unique_ptr<Normalizer>> normalizers;
  std::vector<std::unique_ptr<PreTokenizer>> pre_tokenizers;
  std::unique_ptr<TokenModel> model;
  AddedTokens added;
  PostProcessor post;
  bool has_decoder = false;  ///< without one tokens are joined by spaces
  std::vector<std::unique_ptr<TokenDecoder>> decoders;
};

/// Returns the tokens that a main file adds with those of the files beside it.
using AddTokens = std::function<std::vector<AddedToken>(std::vector<AddedToken>, const Vocabulary&)>;

/// Ids with a meaning, -1 for none, and the files that all came from.
struct TokenizerOrigin {
  int32_t eos = -1;
  int32_t bos = -1;
  int32_t pad = -1;
  std::vector<TokenizerFile> files;
  std::vector<std::string> warnings = {};  ///< Tokenizer::warnings()
  std::string tokenizer_class = {};        ///< Tokenizer::tokenizer_class()
  bool class_is_stored = false;            ///< the files that are stored would be read as another class
};

std::unique_ptr<Tokenizer> make_pipeline_tokenizer(TokenizerParts parts, TokenizerOrigin origin);

/// Tokenizer::serialized() of a tokenizer that was read from files.
std::string serialize_origin(const TokenizerOrigin& origin);

}  // namespace llmtrain
