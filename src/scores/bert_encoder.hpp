#pragma once
// Encoders of BERT's family (Devlin et al. 2019; RoBERTa, Liu et al. 2019) on the host, for embeddings of texts.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.hpp"

namespace llmtrain {

/// Embeddings of a text's tokens: fp32 [tokens, width], row-major.
struct TokenEmbeddings {
  std::vector<int32_t> ids;
  std::vector<float> values;
};

class BertEncoder {
 public:
  /// Reads config.json, the tokenizer and safetensors of a Hugging Face folder of BertModel or RobertaModel, alone or
  /// under a head. `layers`: number of layers whose output counts; 0: the one that bert-score uses for a model of this
  /// shape, or all. Throws UserError.
  explicit BertEncoder(const std::string& folder, int64_t layers = 0);
  ~BertEncoder();
  BertEncoder(const BertEncoder&) = delete;
  BertEncoder& operator=(const BertEncoder&) = delete;

  int64_t layers() const;
  int64_t width() const;
  /// Tokens of a text between those that begin and end it; a text that is too long loses its end.
  std::vector<int32_t> encode(std::string_view text) const;
  /// True for the tokens that begin and end texts.
  bool surrounds(int32_t id) const;
  /// Thread-safe.
  TokenEmbeddings embed(std::string_view text) const;

 private:
  struct Model;
  std::unique_ptr<const Model> model_;
};

}  // namespace llmtrain
