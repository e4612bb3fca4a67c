#pragma once
// Writes a model, its tokenizer and its chat template as one GGUF file, which llama.cpp loads.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hf/gguf/gguf_writer.hpp"
#include "hf/weights/slice_writer.hpp"
#include "models/decoder.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

struct GgufOptions {
  std::string output;
  bool overwrite = false;
  std::optional<GgufType> type;          ///< of matrices; default: the files', for a checkpoint F32. Vectors are F32
  std::string name;                      ///< of the model
  const Tokenizer* tokenizer = nullptr;  ///< null: none
  std::string chat_template;             ///< Jinja; may be empty
  std::vector<int64_t> stop_ids;         ///< tokens that end an answer, besides the tokenizer's EOS
};

/// Parses "q8_0" as Q8_0; fp32, bf16, fp16 and q8_0 are known.
std::optional<GgufType> gguf_type_of(std::string_view name);

/// Returns the template that is used without tools of a folder or checkpoint, or "".
std::string default_chat_template(const std::string& folder);

/// Writes a model of these units: no adapters. Q8_0 needs rows of whole blocks; other matrices become F16. It holds the
/// rows of one head, or 16 MiB. Returns warnings for the user. Throws UserError(bad_content) for a model that llama.cpp
/// has no graph for.
std::vector<std::string> write_gguf(const GgufOptions& options, const DecoderShape& shape,
                                    const std::vector<UnitSpec>& units, const GatherWeights& gather);

/// Converts a Hugging Face folder; tokenizer, chat template, name and stop ids are those of the folder.
std::vector<std::string> convert_to_gguf(const std::string& folder, GgufOptions options);

}  // namespace llmtrain
