// Comparison of a configuration with the resolved deck of an earlier run.

#include <fmt/format.h>

#include "train/config/config.hpp"

namespace llmtrain {

namespace {

/// True if a key names files, or a tokenizer by its files, in both decks.
bool names_files(const std::string& name, const std::string& here, const std::string& there) {
  if (name == "data.tokenizer") return names_tokenizer_files(here) && names_tokenizer_files(there);
  return name == "data.train" || name == "data.validation" || (name == "model.path" && !here.empty() && !there.empty());
}

/// Calls see(key, text, names files) for every key whose effect differs between the resolved deck and the
/// configuration.
template <class See>
void each_difference(const Config& config, std::string_view resolved_deck, const std::string& deck_name,
                     const See& see) {
  Config here = config, there = load_config(resolved_deck, deck_name, {}, DeckFiles::recorded);
  DeckKeys here_keys, there_keys;
  here.visit(here_keys);
  there.visit(there_keys);
  for (const DeckKeys::Key& key : here_keys.keys()) {
    const std::string name = key.full_name();
    const Origin origin = config.provenance.at(name).origin;
    const bool result = config.run.task == Task::evaluate && key.section == "evaluation";
    if ((key.change == Change::nothing && !result) || origin == Origin::unused) continue;
    const bool found_out = name == "model.vocab_size" || name == "precision.compute";
    if (found_out && (origin == Origin::automatic || key.print() == "auto")) continue;
    const std::string mine = key.print(), other = there_keys.find(name)->print();
    if (mine == other) continue;
    // Both follow run.seed, whose difference is reported.
    if (name == "data.seed" && origin == Origin::automatic && other == there_keys.find("run.seed")->print()) continue;
    see(key, fmt::format("{}: {} there, {} here", name, other, mine), names_files(name, mine, other));
  }
}

}  // namespace

std::vector<std::string> differences(const Config& config, std::string_view resolved_deck, const std::string& deck_name,
                                     bool length, std::vector<std::string>* named) {
  std::vector<std::string> found;
  each_difference(config, resolved_deck, deck_name, [&](const DeckKeys::Key& key, const std::string& text, bool files) {
    const bool of_length = key.section == "run" && (key.name == "max_steps" || key.name == "epochs");
    if (named != nullptr && files) {
      named->push_back(text);
    } else if (length || !of_length) {
      found.push_back(text);
    }
  });
  return found;
}

DeckChanges changes_since(const Config& config, std::string_view resolved_deck, const std::string& deck_name) {
  DeckChanges changes;
  each_difference(config, resolved_deck, deck_name, [&](const DeckKeys::Key& key, const std::string& text, bool files) {
    if (files) {
      changes.named.emplace(key.full_name(), text);
    } else {
      (key.change == Change::applies ? changes.applied : changes.breaking).push_back(text);
    }
  });
  return changes;
}

}  // namespace llmtrain
