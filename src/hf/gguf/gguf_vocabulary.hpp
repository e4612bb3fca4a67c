#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "hf/gguf/gguf_writer.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

/// Adds a tokenizer as tokenizer.ggml.*: byte-level BPE (also char and bytes, as byte-level BPE) or SentencePiece's
/// BPE. A row of the model that no token has becomes an unused token. Returns warnings for the user. Throws
/// UserError(bad_content) for a tokenizer that llama.cpp cannot follow.
std::vector<std::string> add_vocabulary(GgufMetadata& metadata, const Tokenizer& tokenizer, int64_t rows);

}  // namespace llmtrain
