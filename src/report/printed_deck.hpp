#pragma once
// Reader of a run's deck.ini as the program prints it, with the origin of each value.

#include <string>
#include <string_view>
#include <vector>

namespace llmtrain {

/// A line of deck.ini.
struct DeckEntry {
  std::string section, key, value;
  std::string provenance;  ///< as the comment says: deck, command line, default, ...
};

/// Reads what it can: a text that is not a deck has no entries.
std::vector<DeckEntry> read_printed_deck(std::string_view text);

}  // namespace llmtrain
