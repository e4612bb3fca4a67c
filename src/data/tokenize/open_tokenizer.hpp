#pragma once
// Tokenizer of a deck's data: the one that the deck names, and the one that made its token files.

#include <memory>
#include <string>
#include <vector>

#include "data/files/token_file.hpp"
#include "data/sample_rules.hpp"
#include "text/tokenizer.hpp"

namespace llmtrain {

inline constexpr const char* bpe_without_text =
    "data.tokenizer: bpe is trained on text, but data.train has none; remove the key, or name the tokenizer of the ids";

/// Opens the tokenizer that the deck names by its files: `for_text`, or for token ids, to which nothing is added.
std::shared_ptr<const Tokenizer> tokenizer_of(const SampleRules& config, const std::string& path, bool for_text);

std::shared_ptr<const Tokenizer> stored_tokenizer(const TokenFileInfo& info);
/// The same with the deck's added tokens.
std::shared_ptr<const Tokenizer> stored_tokenizer(const TokenFileInfo& info, const SampleRules& config);

/// Throws UserError(deck) if the deck adds tokens to a vocabulary of characters or bytes.
void refuse_added_tokens(const SampleRules& config);

/// Returns the first of `files` that stores the tokenizer of all; null: all of them hold ids alone.
const TokenFileInfo* info_with_tokenizer(const std::vector<std::shared_ptr<const TokenFile>>& files);

/// Checks that the tokenizer in the deck is that of its token files.
void check_same_tokenizer(const SampleRules& config, const Tokenizer& named, const Tokenizer& stored,
                          const std::string& path);

/// Returns true if the deck names the tokenizer of token ids. char does not count: a resolved deck has it by default.
bool names_tokenizer_of_ids(const SampleRules& config);

/// Checks ids without a tokenizer. `vocabulary` is the highest id + 1, or the one in their file.
void check_ids(const SampleRules& config, const Tokenizer& named, int64_t vocabulary);

/// Requirements on a tokenizer that is opened.
struct TokenizerUse {
  std::string eos_token;                ///< ends a text instead of the token in its files, unless empty
  bool ends_texts = false;              ///< True if it must have such a token
  bool begins_texts = false;            ///< True if it must have a token that begins texts
  std::vector<std::string> added = {};  ///< further special tokens (with_added_tokens)
};

/// Opens the tokenizer that a deck or a command line names: bytes, a token file (.h5) for the one that made it, or the
/// file or folder of a published one. Throws UserError(command_line) for any other name.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name, const TokenizerUse& use = {});

}  // namespace llmtrain
