#pragma once
// Pre-tokenization steps, which split the text into words that the model turns into tokens one by one: those of the
// tokenizers library, with its results. A step splits one word into several; empty ones vanish.

#include <memory>
#include <string>

#include "text/pipeline/aligned_text.hpp"
#include "text/pipeline/normalizer.hpp"
#include "text/split/pretokenize.hpp"
#include "text/split/regex.hpp"

namespace llmtrain {

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  virtual void apply(const TextView& from, const TextSink& sink) const = 0;
  /// Like Normalizer::is_segmentable.
  virtual bool is_segmentable() const { return true; }
  /// Returns true if the result depends on whether a word begins the input.
  virtual bool asks_for_start() const { return false; }
};

/// Treatment of the matches of a pattern.
enum class SplitBehavior : uint8_t { removed, isolated, merged_with_previous, merged_with_next, contiguous };

std::unique_ptr<PreTokenizer> make_pattern_split(const SplitPattern& pattern, SplitBehavior behavior, bool invert);
std::unique_ptr<PreTokenizer> make_regex_split(RegexMatch match, SplitBehavior behavior, bool invert);
std::unique_ptr<PreTokenizer> make_regex_split(std::unique_ptr<Regex> regex, SplitBehavior behavior, bool invert);
/// Matches every occurrence of a text; an empty one occurs nowhere.
std::unique_ptr<PreTokenizer> make_literal_split(const std::string& literal, SplitBehavior behavior, bool invert);
std::unique_ptr<PreTokenizer> make_digits_split(bool individual);
std::unique_ptr<PreTokenizer> make_punctuation_split(SplitBehavior behavior);
std::unique_ptr<PreTokenizer> make_white_space_split();         ///< WhitespaceSplit
std::unique_ptr<PreTokenizer> make_word_split_pre_tokenizer();  ///< Whitespace: \w+|[^\w\s]+
std::unique_ptr<PreTokenizer> make_fixed_length_split(size_t characters);

enum class PrependScheme : uint8_t { first, never, always };
std::unique_ptr<PreTokenizer> make_metaspace(char32_t replacement, PrependScheme scheme, bool split);
/// Adds a space before a word that has none (ByteLevel's add_prefix_space).
std::unique_ptr<PreTokenizer> make_prefix_space();
/// Wraps a change of the text that splits nothing.
std::unique_ptr<PreTokenizer> make_normalizing_step(std::unique_ptr<Normalizer> normalizer);

}  // namespace llmtrain
