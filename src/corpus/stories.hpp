#pragma once
// The built-in example corpus: short English stories from a probabilistic grammar whose entropy is known exactly, so
// that a validation loss can be compared with its optimum. Names, things, places and numbers return long after they
// were introduced: a transformer recalls them, a model of the last few words cannot.

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "corpus/grammar.hpp"

namespace llmtrain {

/// Separator that follows every story, the last one included. A document is the text between two separators.
inline constexpr std::string_view story_separator = "\n\n";
/// Upper bound of a story's bytes (= characters: the text is ASCII); as a sample it needs this sequence length.
inline constexpr int64_t longest_story = 287;

/// Returns the data of the grammar, which stories.txt has.
const GrammarSource& stories_source();
/// Returns the compiled grammar, which is made once.
const Grammar& stories_grammar();

/// Returns story `index` of the corpus `seed`: a pure function of both, the same bytes on every machine.
std::string story(uint64_t seed, uint64_t index);

/// Exact loss of a perfect model. With H = entropy of a story, H1 = entropy of its first character and L = its length:
/// a document is L characters and one end symbol. Without a symbol for the beginning, the first character is an input
/// only, and the L trained targets are characters 2 .. L and the end symbol. Their entropy given everything before them
/// is H - H1 (chain rule: the first character and the end are functions of the story). A loss is a sum over targets
/// divided by their number; the expectations per story are H - H1 and E[L]. Every story begins with the same letter, so
/// H1 = 0, and this is also the entropy per character of the text.
struct StoriesOptimum {
  double nats_per_story = 0;        ///< H
  double nats_per_character = 0;    ///< (H - H1) / E[L]
  double characters_per_story = 0;  ///< E[L]
};
StoriesOptimum stories_optimum();

struct StoriesSummary {
  int64_t stories = 0;
  int64_t bytes = 0;  ///< with separators
};
/// Passes stories 0, 1, ... of corpus `seed`, each with its separator, to `sink` while whole stories fit into `bytes`.
/// A smaller corpus is a prefix of a larger one.
StoriesSummary write_stories(uint64_t seed, int64_t bytes, const std::function<void(std::string_view)>& sink);
/// Returns the same as one string.
std::string stories_text(uint64_t seed, int64_t bytes);

}  // namespace llmtrain
