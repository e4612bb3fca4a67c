#pragma once
#include <memory>
#include <string>

#include "text/tokenizer.hpp"

namespace llmtrain {

/// What a tokenizer is opened for.
struct TokenizerUse {
  std::string eos_token;      ///< ends a text instead of what its files name, when not empty
  bool ends_texts = false;    ///< it must have a token for that
  bool begins_texts = false;  ///< and one for that
};

/// The tokenizer that a deck or a command line names: bytes, a token file (.h5) for the one that it was made with, or a
/// published one's file or folder. UserError(command_line) for what is none of them.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name, const TokenizerUse& use = {});

}  // namespace llmtrain
