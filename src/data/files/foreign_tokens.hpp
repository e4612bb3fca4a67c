#pragma once
// Token ids as other trainers store them -> a token file: nanoGPT's and llm.c's .bin, Megatron's .bin with its .idx.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/progress.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

enum class ForeignTokens : uint8_t {
  nanogpt,   ///< little-endian uint16 ids, nothing else; a document ends with EOS
  llmc,      ///< 256 int32 of header (20240520: uint16 ids of GPT-2, 20240801: uint32 ids of Llama 3), then ids; a
             ///< delimiter stands before each document, and a document may go on in the next file
  megatron,  ///< ids in .bin; type, lengths of sequences and documents in .idx (MMIDIDX)
};

struct TokenImport {
  std::vector<std::string> inputs;  ///< in order; of Megatron one: either file, or their name without ending
  std::string output;
  std::string command;                   ///< to be remembered
  const Tokenizer* tokenizer = nullptr;  ///< where it is known: vocabulary and EOS are its
  int64_t vocabulary_size = 0;           ///< without a tokenizer; 0: as the format says (llm.c)
  int64_t eos_id = -1;                   ///< likewise
};

/// The format of a file that says what it is; false for anything else, nanoGPT's among it.
bool is_foreign_tokens(const std::string& path, ForeignTokens& format);

/// Documents of the token file end with EOS, also those that llm.c's delimiter began. Empty ones are left out.
/// UserError: bad_content (sizes, ids outside the vocabulary), missing_input, command_line for what must be said and is
/// not. Memory is bounded by the number of documents.
void import_tokens(ForeignTokens format, const TokenImport& request, const ProgressReport& report);

}  // namespace llmtrain
