#pragma once
// Names and conventions of llama.cpp for the decoders of this program.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "hf/gguf/gguf_writer.hpp"
#include "kernels/head_groups.hpp"
#include "models/decoder.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

/// Returns why llama.cpp has no graph for this model, or "".
std::string gguf_obstacle(const ModelConfig& model);

/// Returns what llama.cpp computes differently, for the user.
std::vector<std::string> gguf_differences(const ModelConfig& model);

/// Returns llama.cpp's name of a family: Mistral's models are llama's.
std::string_view gguf_architecture(ModelConfig::Family family);

/// Adds the keys of the model's architecture: sizes, norms, rope, softcaps.
void add_hyperparameters(GgufMetadata& metadata, const ModelConfig& model);

/// A slice of a parameter as a tensor of the file, and how its values differ.
struct GgufSlice {
  std::string name;
  int64_t pair_heads =
      0;  ///< heads whose rows are in the order of llama's rope, which turns neighbours; 0: as they are
  HeadGroups groups{0, 0};  ///< heads of a matrix by groups, whose order is queries, keys, values there; 0: as they are
  float add = 0;            ///< is added to each value: norms stored as their distance from 1
  float factor = 1;         ///< then multiplies it: scores that llama.cpp divides by another number
  int64_t expert = -1;      ///< number of the matrix in the array of all experts' that the tensor is; -1: it is whole
  bool as_vector = false;   ///< a matrix of one row that the file has as a vector
  bool in_fp32 = false;     ///< whatever the type of the others
};
GgufSlice gguf_slice(const DecoderShape& shape, const std::string& tensor);

/// Tensors that the weights do not have: factors of rope's wavelengths.
struct GgufTable {
  std::string name;
  std::vector<float> values;
};
std::vector<GgufTable> gguf_tables(const ModelConfig& model);

/// Adds a tokenizer as tokenizer.ggml.*: byte-level BPE (also char and bytes, as byte-level BPE) or SentencePiece's
/// BPE. A row of the model that no token has becomes an unused token. Returns warnings for the user. Throws
/// UserError(bad_content) for a tokenizer that llama.cpp cannot follow.
std::vector<std::string> add_vocabulary(GgufMetadata& metadata, const Tokenizer& tokenizer, int64_t rows);

}  // namespace llmtrain
