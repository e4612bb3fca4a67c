#pragma once
// What the files beside a tokenizer's main one say of it.

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/added_tokens.hpp"
#include "text/pipeline_tokenizer.hpp"
#include "text/tokenizer_file_set.hpp"
#include "text/tokenizer_readers.hpp"

namespace llmtrain {

/// Tokens that tokenizer_config.json, or else added_tokens.json, adds.
std::vector<AddedToken> tokens_beside(const TokenizerFileSet& set);

Gpt2Options gpt2_options(const TokenizerFileSet& set);

/// The id of a token, -1 for none.
using FindToken = std::function<int32_t(std::string_view)>;

/// The first of these texts that is a token; -1: none is.
int32_t first_token(const FindToken& find, std::initializer_list<std::string_view> texts);

/// EOS, BOS and padding as the files name them: as text, else as id; -1 where none does. No files.
TokenizerOrigin named_ids(const TokenizerFileSet& set, const FindToken& find, int64_t id_limit);

}  // namespace llmtrain
