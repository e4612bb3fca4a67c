#pragma once
// Settings of another program as a deck.

#include <string>
#include <string_view>
#include <vector>

#include "convert/system.hpp"
#include "core/deck/deck.hpp"

namespace llmtrain::convert {

/// Result for one key of the settings.
struct Finding {
  std::string file;
  int line;
  std::string key;
  Effect effect;
  std::string text;  ///< deck keys with their values, the reason, what to do instead, or the nearest known key
};

struct Conversion {
  const System* system;
  std::string deck;
  std::vector<Finding> findings;     ///< one for each key, in the order of the files
  std::vector<std::string> remarks;  ///< sentences about the deck as a whole
  std::vector<std::string> needs;    ///< "section.key: what to give": required keys that the settings cannot tell

  size_t count(Effect effect) const;
};

/// Most GPUs, passes or sequences in one number of the settings.
inline constexpr int64_t max_batch = 1 << 20;

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
