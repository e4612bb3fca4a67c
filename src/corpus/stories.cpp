#include "corpus/stories.hpp"

#include "core/philox.hpp"

namespace llmtrain {

namespace {

/// Separates the random streams of the corpus from those of sampling.
constexpr uint64_t corpus_tag = 0x73746F72696573;  // "stories"

/// Draws uniform integers below n from 32-bit words, without bias (Lemire, ACM TOMACS 29, 2019: multiply, keep the
/// upper word, reject the few lower words that would favour some results).
class UniformBelow {
 public:
  UniformBelow(uint64_t key, uint64_t sequence) : key_(key), sequence_(sequence) {}

  uint32_t operator()(uint32_t n) {
    const uint32_t unfair = (0u - n) % n;  // 2^32 mod n
    for (;;) {
      const uint64_t product = uint64_t{random_bits(key_, sequence_, element_++)} * n;
      if (static_cast<uint32_t>(product) >= unfair) return static_cast<uint32_t>(product >> 32);
    }
  }

 private:
  uint64_t key_;
  uint64_t sequence_;
  uint64_t element_ = 0;
};

}  // namespace

const Grammar& stories_grammar() {
  static const Grammar grammar(stories_source());
  return grammar;
}

std::string story(uint64_t seed, uint64_t index) {
  return stories_grammar().write(UniformBelow(random_key(seed, RandomPurpose::sampling, corpus_tag), index));
}

StoriesOptimum stories_optimum() {
  const Grammar& grammar = stories_grammar();
  StoriesOptimum optimum;
  optimum.nats_per_story = grammar.entropy();
  optimum.characters_per_story = grammar.expected_length();
  optimum.nats_per_character =
      (optimum.nats_per_story - grammar.first_character_entropy()) / optimum.characters_per_story;
  return optimum;
}

StoriesSummary write_stories(uint64_t seed, int64_t bytes, const std::function<void(std::string_view)>& sink) {
  StoriesSummary summary;
  for (;;) {
    const std::string text = story(seed, static_cast<uint64_t>(summary.stories)).append(story_separator);
    const int64_t size = static_cast<int64_t>(text.size());
    if (size > bytes - summary.bytes) return summary;
    sink(text);
    summary.bytes += size;
    ++summary.stories;
  }
}

std::string stories_text(uint64_t seed, int64_t bytes) {
  std::string text;
  write_stories(seed, bytes, [&](std::string_view one) { text += one; });
  return text;
}

}  // namespace llmtrain
