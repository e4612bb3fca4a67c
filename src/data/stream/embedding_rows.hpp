#pragma once
// Checks of data against the embedding of an existing model: no token may have an id that is
// SampleRules::embedding_rows or higher. If that is 0, the model gets as many rows as the data need, and nothing is
// refused here.

#include <cstdint>
#include <memory>
#include <string>

#include "data/files/token_file.hpp"
#include "data/progress.hpp"
#include "data/sample_rules.hpp"
#include "parallel/communicator.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

/// Returns true if ids of a vocabulary can lack a row.
bool exceeds_rows(const SampleRules& config, int64_t vocabulary);
/// Returns the vocabulary that a model needs for ids of this one.
int64_t needed_rows(const SampleRules& config, int64_t vocabulary);

/// Returns a warning that names tokens without a row; empty if there is none. `tokenizer` may be null.
std::string missing_rows_warning(const Tokenizer* tokenizer, const SampleRules& config);

/// Throws UserError(bad_content) if EOS or BOS, which documents of text get, has no row.
void check_document_tokens(const Tokenizer& tokenizer, const SampleRules& config);

/// Returns the index of the first token whose id has no row, -1 if there is none. Collective: the ranks share the
/// reading, which is skipped if the vocabulary suffices.
int64_t find_missing_row(const TokenFile& file, const SampleRules& config, Communicator& communicator,
                         const ProgressReport& report);
/// Returns the token file with the guarantee that all ids have rows; throws UserError(bad_content) for the first one
/// that has none. `tokenizer` names it and may be null. Collective.
std::shared_ptr<const TokenFile> with_rows(const std::shared_ptr<const TokenFile>& file, const Tokenizer* tokenizer,
                                           const SampleRules& config, Communicator& communicator,
                                           const ProgressReport& report);

}  // namespace llmtrain
