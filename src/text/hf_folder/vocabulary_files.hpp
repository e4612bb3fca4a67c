#pragma once
// Tokenizer formats without a description of their steps: each reader creates those steps.

#include <string>
#include <string_view>

#include "text/pipeline/pipeline_tokenizer.hpp"

namespace llmtrain {

inline constexpr int64_t max_tiktoken_file = int64_t{16} << 20;  ///< bytes

/// Reads GPT-2's files: byte-level BPE with its split. `add` makes the added tokens.
TokenizerSteps read_gpt2_files(std::string_view vocab_json, std::string_view merges_txt, const std::string& vocab_name,
                               const std::string& merges_name, bool add_prefix_space, const AddTokens& add);

/// Reads lines "base64 rank". The number of ranks identifies the split and the special tokens: Llama 3.
TokenizerSteps read_tiktoken_file(std::string_view text, const std::string& name);

}  // namespace llmtrain
