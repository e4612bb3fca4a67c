#pragma once
// Published tokenizers: a tokenizer.json, GPT-2's vocab.json and merges.txt, a SentencePiece model, a tiktoken file of
// ranks, or a folder with one of them; or the tokenizer in a checkpoint.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.hpp"

namespace llmtrain {

/// Name in a checkpoint: Tokenizer::serialized().
inline constexpr const char* stored_tokenizer_name = "tokenizer.txt";
inline constexpr int64_t max_stored_tokenizer_bytes = int64_t{1} << 30;

/// Reads a file or a folder `path`; in a folder tokenizer.json comes first, a stored tokenizer last. The ids of EOS,
/// BOS and padding come from tokenizer_config.json, special_tokens_map.json, generation_config.json and config.json
/// next to it, in this order; otherwise the usual names are used. A non-empty `eos_token` overrides the EOS. A
/// tokenizer without an EOS has eos_id() -1. Throws UserError: missing_input, bad_content "file: ...".
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& path, const std::string& eos_token = {});

/// Returns true if a name in a deck or on a command line is a path rather than a kind of tokenizer.
bool is_tokenizer_path(std::string_view name);

/// Adds special tokens to a tokenizer, whose files then have them, as Transformers does with
/// add_tokens(tokens, special_tokens=True) and save_pretrained. Tokens that are added already stay as they are, those
/// of the vocabulary become special and keep their ids, others get the next ids in order. A token with a usual name for
/// padding (<pad>, [PAD]) becomes the pad token where there is none. A non-empty `eos_token` overrides the EOS. Throws
/// UserError: deck (char and bytes), bad_content.
std::unique_ptr<Tokenizer> with_added_tokens(const Tokenizer& tokenizer, const std::vector<std::string>& tokens,
                                             const std::string& eos_token = {});

/// Returns those of the texts that are tokens already.
std::vector<std::string> tokens_known_to(const Tokenizer& tokenizer, const std::vector<std::string>& tokens);

/// Writes the files that a tokenizer was read from, unchanged, into an existing folder, and tokenizer_config.json if
/// the tokenizer had none; char and bytes get files (plain_tokenizer_files). If a config.json there could decide the
/// tokenizer class, tokenizer_config.json gets the class that the tokenizer was read as. Throws UserError(io).
void save_tokenizer(const Tokenizer& tokenizer, const std::string& folder);

/// Throws UserError(bad_content), with advice on naming one, if the tokenizer has no EOS.
void require_eos(const Tokenizer& tokenizer, const std::string& path);

}  // namespace llmtrain
