#pragma once
#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer.hpp"

namespace llmtrain {

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
