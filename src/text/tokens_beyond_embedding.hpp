#pragma once
// Tokens without an embedding row. The embedding of an existing model has a row for each id below some number. Its
// tokenizer can name more tokens, such as a padding token that was added later; then no text may contain one of these.

#include <cstdint>
#include <span>
#include <string>

#include "text/tokenizer.hpp"

namespace llmtrain {

/// Returns "the token "[PAD]" has the id 512, but the model's embedding has only 512 rows". `tokenizer` names the id
/// and may be null.
std::string row_shortage(const Tokenizer* tokenizer, int64_t id, int64_t rows);
/// Returns the same for a token in a text, with advice.
std::string missing_row(const Tokenizer* tokenizer, int64_t id, int64_t rows);

/// Returns a warning that names tokens without a row; empty if every token has one.
std::string tokens_without_row(const Tokenizer& tokenizer, int64_t rows);

/// Throws UserError(bad_content), which begins with `place`, if an id has no row.
void require_rows(std::span<const int32_t> ids, const Tokenizer* tokenizer, int64_t rows, const std::string& place);

}  // namespace llmtrain
