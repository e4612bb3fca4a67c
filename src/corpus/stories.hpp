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

/// Follows every story, also the last one. A document is the text between two separators.
inline constexpr std::string_view story_separator = "\n\n";
/// No story has more bytes (= characters: the text is ASCII); as a sample it needs this sequence length.
inline constexpr int64_t longest_story = 287;

/// The data of the grammar.
const GrammarSource& stories_source();
/// The compiled grammar; made once.
const Grammar& stories_grammar();

/// Story `index` of the corpus `seed`: a pure function of both, the same bytes on every machine.
std::string story(uint64_t seed, uint64_t index);

/// What a perfect model attains, exactly. With H = entropy of a story, H1 = entropy of its first character and
/// L = its length: a document is L characters and one end symbol. Without a symbol of beginning the first character is
/// an input only, and the L trained targets are characters 2 .. L and the end symbol. Their entropy given all that
/// precedes them is H - H1 (chain rule: the first character is a function of the story, and so is the end of it). A
/// loss is a sum over targets divided by their number, whose expectations are H - H1 and E[L] a story. Every story
/// begins with the same letter: H1 = 0, so this is also the entropy per character of the text.
struct StoriesOptimum {
  double nats_per_story = 0;        ///< H
  double nats_per_character = 0;    ///< (H - H1) / E[L]
  double characters_per_story = 0;  ///< E[L]
};
StoriesOptimum stories_optimum();

struct StoriesSummary {
  int64_t stories = 0;
  int64_t bytes = 0;  ///< separators included
};
/// Hands stories 0, 1, ... of corpus `seed`, each with its separator, to `sink` as long as they fit into `bytes` whole.
/// A smaller corpus is the beginning of a larger one.
StoriesSummary write_stories(uint64_t seed, int64_t bytes, const std::function<void(std::string_view)>& sink);
/// The same as one string.
std::string stories_text(uint64_t seed, int64_t bytes);

}  // namespace llmtrain
