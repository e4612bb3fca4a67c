#pragma once
// Reading of a deck: parse, resolve each section, check what sections ask of each other.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.hpp"

namespace llmtrain {

class ModelFolders;

/// Extent of load_config's checks: the deck alone, also the data, or all files that the deck names. A model's
/// config.json is always read, except for a recorded deck, which contains it.
enum class DeckFiles : uint8_t { recorded, trust, examine_data, examine };

/// Resolves the configuration of a deck. `deck_name` is its path, for messages and the name of the run; `overrides` are
/// arguments section.key=value. All errors are collected in one UserError. With `examine` they include errors of data
/// files, and the vocabulary is set from the headers of token files.
Config load_config(std::string_view deck_text, const std::string& deck_name,
                   std::span<const std::string> overrides = {}, DeckFiles files = DeckFiles::trust,
                   ModelFolders* folders = nullptr);

/// A key whose effect differs between the resolved deck of an earlier run ("there") and a configuration ("here").
struct DeckDifference {
  enum class Effect : uint8_t {
    breaks,       ///< the saved state would not fit
    applies,      ///< the change takes effect from here on
    names_files,  ///< breaks unless the files of both names have the same content
  };

  std::string key;   ///< "section.key"
  std::string text;  ///< "section.key: <value> there, <value> here"
  Effect effect;

  bool is_length() const { return key == "run.max_steps" || key == "run.epochs"; }
};

/// Compares a configuration with the resolved deck of an earlier run. Keys for output folders and display are ignored,
/// as are keys that this configuration has yet to determine (the tokenizer's vocabulary, the device's precision).
std::vector<DeckDifference> differences(const Config& config, std::string_view resolved_deck,
                                        const std::string& deck_name);

/// Compares the deck of a job with a resolved deck, as differences() does.
using DeckComparison =
    std::function<std::vector<DeckDifference>(std::string_view resolved_deck, const std::string& deck_name)>;
/// The configuration must outlive the result.
DeckComparison comparison_with(const Config& config);

}  // namespace llmtrain
