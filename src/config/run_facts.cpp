#include "config/run_facts.hpp"

#include <fmt/format.h>

#include <utility>

namespace llmtrain {

RunFacts::RunFacts(const Config& deck)
    : vocabulary(deck.model.vocab_size),
      compute(deck.precision.compute),
      sequence_length(deck.batch.sequence_length),
      overwrite(deck.run.overwrite),
      labels(deck.classify.labels),
      notes(deck.notes) {}

void RunFacts::add_note(std::string note) {
  if (!note.empty()) notes.push_back(std::move(note));
}

Config with_facts(Config deck, const RunFacts& facts) {
  const auto decide = [&](const std::string& key, auto& value, const auto& fact, const std::string& why) {
    if (value == fact) return;
    value = fact;
    deck.provenance.set(key, Origin::automatic, why);
  };
  decide("model.vocab_size", deck.model.vocab_size, facts.vocabulary, "the tokenizer's");
  decide("precision.compute", deck.precision.compute, facts.compute, "the device's");
  decide("batch.sequence_length", deck.batch.sequence_length, facts.sequence_length,
         fmt::format("the longest prompt, {}, and generate.max_new_tokens; {}",
                     facts.sequence_length - deck.generate.max_new_tokens,
                     deck.provenance.at("batch.sequence_length").note));
  decide("classify.labels", deck.classify.labels, facts.labels, "the rows'");
  if (!facts.labels.empty()) deck.model.labels = facts.labels;
  deck.run.overwrite = facts.overwrite;
  deck.notes = facts.notes;
  return deck;
}

}  // namespace llmtrain
