#pragma once
// The embedding of a model that exists has a row for each id below some number. Its tokenizer may name more tokens,
// such as a padding token that was added later; then no text may hold one of these.

#include <cstdint>
#include <span>
#include <string>

#include "text/tokenizer.hpp"

namespace llmtrain {

/// "the token "[PAD]" has the id 512, but the model's embedding has only 512 rows". `tokenizer` names the id and may be
/// null.
std::string row_shortage(const Tokenizer* tokenizer, int64_t id, int64_t rows);
/// The same of a token in a text, and what to do.
std::string missing_row(const Tokenizer* tokenizer, int64_t id, int64_t rows);

/// A warning that names tokens without a row; empty when every token has one.
std::string tokens_without_row(const Tokenizer& tokenizer, int64_t rows);

/// UserError(bad_content), which begins with `place`, when an id has no row.
void require_rows(std::span<const int32_t> ids, const Tokenizer* tokenizer, int64_t rows, const std::string& place);

}  // namespace llmtrain
