// Comparison of a configuration with the resolved deck of an earlier run.

#include <fmt/format.h>

#include "methods/method.hpp"
#include "train/config/load_config.hpp"

namespace llmtrain {

namespace {

/// True if a key names files, or a tokenizer by its files, in both decks.
bool names_files(const std::string& name, const std::string& here, const std::string& there) {
  if (name == "data.tokenizer") return names_tokenizer_files(here) && names_tokenizer_files(there);
  return name == "data.train" || name == "data.validation" || name == "generate.prompts" ||
         (name == "model.path" && !here.empty() && !there.empty());
}

}  // namespace

std::vector<DeckDifference> differences(const Config& config, std::string_view resolved_deck,
                                        const std::string& deck_name) {
  using Effect = DeckDifference::Effect;
  Config here = config, there = load_config(resolved_deck, deck_name, {}, DeckFiles::recorded);
  DeckKeys here_keys, there_keys;
  here.visit(here_keys);
  there.visit(there_keys);
  std::vector<DeckDifference> found;
  const TaskRules& task = task_rules(config.run.task);
  const bool fits_prompts = task.max_default_length() == TaskRules::length_of_prompts;
  for (const DeckKeys::Key& key : here_keys.keys()) {
    const std::string name = key.full_name();
    const Origin origin = config.provenance.at(name).origin;
    if (!task.compares(key) || origin == Origin::unused) continue;
    const bool found_out = name == "model.vocab_size" || name == "classify.labels" || name == "precision.compute" ||
                           (name == "batch.sequence_length" && fits_prompts);
    if (found_out && (origin == Origin::automatic || key.print() == "auto" || key.print().empty())) continue;
    const std::string mine = key.print(), other = there_keys.find(name)->print();
    if (mine == other) continue;
    // Both follow run.seed, whose difference is reported.
    if (name == "data.seed" && origin == Origin::automatic && other == there_keys.find("run.seed")->print()) continue;
    const Effect effect = names_files(name, mine, other)  ? Effect::names_files
                          : key.change == Change::applies ? Effect::applies
                                                          : Effect::breaks;
    found.push_back({name, fmt::format("{}: {} there, {} here", name, other, mine), effect});
  }
  return found;
}

DeckComparison comparison_with(const Config& config) {
  return [&config](std::string_view resolved_deck, const std::string& deck_name) {
    return differences(config, resolved_deck, deck_name);
  };
}

}  // namespace llmtrain
