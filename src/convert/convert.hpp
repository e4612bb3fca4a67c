#pragma once
// Settings of another program as a deck.

#include <string>

#include "convert/draft.hpp"
#include "core/deck/deck.hpp"

namespace llmtrain::convert {

struct ConvertOptions {
  std::string from = "auto";
  std::string task;   ///< of the settings, such as sft or dpo; empty: by their keys
  int64_t ranks = 0;  ///< GPUs of the other program's job; 0: those that the settings name, or 1
};

/// Converts a file. `keys` checks the deck's values; its fields are overwritten. Throws UserError: those of
/// read_settings, bad_content for a value that cannot be read, command_line for an unknown name in the options.
Conversion convert_settings(const std::string& path, const ConvertOptions& options, const DeckKeys& keys);

/// The page of docs/settings with the table of a system.
std::string settings_page(const System& system);

}  // namespace llmtrain::convert
