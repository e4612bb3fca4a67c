#pragma once
// Converts token ids of other trainers to a token file: nanoGPT's and llm.c's .bin, Megatron's .bin with its .idx.

#include <cstdint>
#include <string>
#include <vector>

#include "data/progress.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

enum class ForeignTokens : uint8_t {
  nanogpt,   ///< little-endian uint16 ids, nothing else; a document ends with EOS
  llmc,      ///< 256 int32 of header (20240520: uint16 ids of GPT-2, 20240801: uint32 ids of Llama 3), then ids; a
             ///< delimiter precedes each document, and a document can continue in the next file
  megatron,  ///< ids in .bin; type, lengths of sequences and documents in .idx (MMIDIDX)
};

struct TokenImport {
  std::vector<std::string> inputs;  ///< in order; for Megatron one: either file, or their name without the ending
  std::string output;
  std::string command;                   ///< stored in the token file
  const Tokenizer* tokenizer = nullptr;  ///< vocabulary and EOS come from it; may be null
  int64_t vocabulary_size = 0;           ///< without a tokenizer; 0: from the format (llm.c)
  int64_t eos_id = -1;                   ///< likewise
};

/// Detects the format of a file; returns false for unknown ones, nanoGPT's included.
bool is_foreign_tokens(const std::string& path, ForeignTokens& format);

/// Documents of the token file end with EOS, also those that began with llm.c's delimiter. Empty ones are omitted.
/// Throws UserError: bad_content (sizes, ids outside the vocabulary), missing_input, command_line if a required option
/// is missing. Memory is bounded by the number of documents.
void import_tokens(ForeignTokens format, const TokenImport& request, const ProgressReport& report);

}  // namespace llmtrain
