#pragma once
// Tokenizers as they are published: a tokenizer.json, GPT-2's vocab.json and merges.txt, a SentencePiece model, a
// ranked file of tiktoken's, or a folder with one of them; or the one that a checkpoint holds.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "text/tokenizer.hpp"

namespace llmtrain {

/// In a checkpoint: Tokenizer::serialized().
inline constexpr const char* stored_tokenizer_name = "tokenizer.txt";
inline constexpr int64_t max_stored_tokenizer_bytes = int64_t{1} << 30;

/// `path`: a file or a folder; in a folder tokenizer.json comes first, a stored tokenizer last. Ids of EOS, BOS and
/// padding come from tokenizer_config.json, special_tokens_map.json, generation_config.json and config.json beside it,
/// in this order; else the usual names are looked for. `eos_token` names the EOS instead, when not empty. A tokenizer
/// without an EOS has eos_id() -1. UserError: missing_input, bad_content "file: ...".
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path, const std::string& eos_token = {});

/// Whether a name in a deck or on a command line means a file or folder, not a kind of tokenizer.
bool is_tokenizer_path(std::string_view name);

/// From serialize_origin(); called by make_tokenizer_from.
std::unique_ptr<Tokenizer> load_serialized_tokenizer(std::string_view serialized);

/// Writes the files that a tokenizer was read from, unchanged, into a folder that is there, and tokenizer_config.json
/// when it came without one; char and bytes get files (plain_files.hpp). Where a config.json beside them could decide
/// the tokenizer class, tokenizer_config.json gets the one that the tokenizer was read as. UserError(io).
void save_tokenizer(const Tokenizer& tokenizer, const std::string& folder);

/// UserError(bad_content) that says how to name one, when the tokenizer has no EOS.
void require_eos(const Tokenizer& tokenizer, const std::string& path);

}  // namespace llmtrain
