// A configuration as text: its deck, its settings, and the manual of all keys.

#include "config/config.hpp"

namespace llmtrain {

std::string write_deck(const Config& config) {
  Config copy = config;  // the keys refer to non-const fields
  DeckKeys keys;
  copy.visit(keys);
  return write_deck(keys, config.provenance, "Resolved deck: every key, with the origin of its value.");
}

std::vector<DeckSetting> deck_settings(const Config& config) {
  Config copy = config, defaults;
  DeckKeys keys, default_keys;
  copy.visit(keys);
  defaults.visit(default_keys);
  std::vector<DeckSetting> settings;
  for (size_t i = 0; i < keys.keys().size(); ++i) {
    const DeckKeys::Key& key = keys.keys()[i];
    if (config.provenance.at(key.full_name()).origin == Origin::unused) continue;
    const std::string value = key.print();
    const bool changed = key.change != Change::nothing && value != default_keys.keys()[i].print();
    settings.push_back({std::string(key.section), std::string(key.name), value, changed});
  }
  return settings;
}

std::string help_text(std::string_view topic) {
  DeckKeys keys;
  Config defaults;
  defaults.visit(keys);
  return deck_help(keys, topic);
}

std::string deck_manual() {
  DeckKeys keys;
  Config defaults;
  defaults.visit(keys);
  return deck_manual(keys);
}

}  // namespace llmtrain
