#pragma once
// Converts config.json to and from the deck's [model]: config_reader.cpp reads, config_writer.cpp writes. Every key of
// a file is used, is known to have no effect on training, or is named in a warning, since Transformers does not read it
// either. An unsupported value that changes the model's mathematics is an error.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/files/folder_handle.hpp"
#include "models/model_config.hpp"
#include "models/quantization_config.hpp"

namespace llmtrain {

inline constexpr int64_t max_config_bytes = int64_t{1} << 20;

/// Settings of config.json other than the shape.
struct TokenIds {
  int64_t bos = -1;  ///< -1 = none
  int64_t pad = -1;
  std::vector<int64_t> eos;
};

struct HfConfig {
  ModelConfig model;  ///< resolved; both dropouts are 0, since they belong to the deck
  TokenIds ids;
  QuantizationConfig quantization;    ///< of the folder's matrices, if it is bitsandbytes'
  std::vector<std::string> warnings;  ///< warnings for the user, each beginning with the file's path
};

/// Reads files in the style of v4 and v5. `place` is the file's path, for messages. Throws UserError(bad_content) with
/// all problems.
HfConfig parse_hf_config(std::string_view text, const std::string& place);

/// Returns the ids in generation_config.json, which Transformers' generate() prefers to those of config.json;
/// `otherwise` supplies ids that it does not name. Throws UserError(bad_content).
TokenIds parse_generation_ids(std::string_view text, const std::string& place, const TokenIds& otherwise);

/// Returns, for example, "LlamaForCausalLM".
std::string_view architecture_name(ModelConfig::Family family);

/// Returns the dtype of stored weights as config.json names it: float32, bfloat16, float16.
std::string write_hf_config(const ModelConfig& model, const TokenIds& ids, std::string_view dtype);

/// Returns generation_config.json with the ids that the model has.
std::string write_generation_config(const ModelConfig& model, const TokenIds& ids);

/// Returns a generation_config.json whose EOS ids have `more`, after its own or else `model` (the ids of config.json);
/// unchanged if it has them.
std::string with_eos_ids(const std::string& text, const std::string& place, const std::vector<int64_t>& model,
                         const std::vector<int64_t>& more);

/// Returns the reason why no config.json describes this model (Transformers has no such architecture), or "".
std::string hf_config_obstacle(const ModelConfig& model);

/// Returns the text as that of a *ForSequenceClassification or *ForTokenClassification with the model's labels. `pad`:
/// the tokenizer's padding token, or -1. Transformers searches for it to find the last token of a text, so that a token
/// that ends texts is none.
std::string with_score_head(const std::string& config_text, const std::string& place, int64_t pad,
                            const ModelConfig& model);

/// Returns the text with another dtype of the weights, or unchanged if it has that dtype.
std::string with_dtype(const std::string& config_text, const std::string& place, std::string_view dtype);

/// Returns the text as that of a model whose head is a matrix of its own (tie_word_embeddings: false).
std::string with_untied_head(const std::string& config_text, const std::string& place);

/// Returns the text with another vocab_size, or unchanged if it has this one.
std::string with_vocabulary(const std::string& config_text, const std::string& place, int64_t tokens);

/// Returns a config.json without quantization_config: for weights that are written dequantised.
std::string without_quantization(const std::string& config_text, const std::string& place);

/// Returns the folder's config.json, for parse_hf_config. Its quantization_config becomes what the weights say, if
/// there are any: Transformers' does not have the size of blocks, nor all modules that are in 16 bits. It is left out
/// where no storage of this program has these matrices, so that they are dequantised.
std::string read_hf_config(const FolderHandle& folder);

}  // namespace llmtrain
