#pragma once
// The tokenizer of a deck's data: the one that the deck names, and the one that its token files were made with.

#include <memory>
#include <string>
#include <vector>

#include "data/data_config.hpp"
#include "data/files/token_file.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

/// The tokenizer that the deck names by its files: `for_text`, or of token ids, to which nothing is added.
std::shared_ptr<const Tokenizer> tokenizer_of(const DataConfig& config, const std::string& path, bool for_text);

std::shared_ptr<const Tokenizer> stored_tokenizer(const TokenFileInfo& info);

/// The one of `files` that was made with the tokenizer of all; null: they hold ids alone.
const TokenFileInfo* info_with_tokenizer(const std::vector<std::shared_ptr<const TokenFile>>& files);

/// A deck that says data.tokenizer means that of its token files.
void check_same_tokenizer(const DataConfig& config, const Tokenizer& named, const Tokenizer& stored,
                          const std::string& path);

/// Returns whether the deck says whose token ids are. char does not: it is what a resolved deck says where nobody did.
bool names_tokenizer_of_ids(const DataConfig& config);

/// Ids that a tokenizer has not given. `vocabulary`: the highest id + 1, or what their file says.
void check_ids(const DataConfig& config, const Tokenizer& named, int64_t vocabulary);

}  // namespace llmtrain
