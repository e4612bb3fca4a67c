#include "corpus/stories.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "corpus/grammar_reader.hpp"
#include "corpus/questions.hpp"
#include "corpus/word_ngram.hpp"

namespace llmtrain {
namespace {

using ::testing::ElementsAre;

constexpr int64_t corpus_bytes = 8'000'000;

/// FNV-1a, 64 bits.
uint64_t fnv(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

const std::vector<std::string>& corpus() {
  static const std::vector<std::string> stories = [] {
    std::vector<std::string> all;
    write_stories(1, corpus_bytes, [&](std::string_view text) {
      all.emplace_back(text.substr(0, text.size() - story_separator.size()));
    });
    return all;
  }();
  return stories;
}

// Others cite the corpus: a change of these values changes the corpus.
TEST(Stories, AreTheSameBytesEverywhere) {
  EXPECT_EQ(story(1, 0),
            "One cold morning Anna and Victor ran to Venice.\n"
            "Anna found 5 lazy Plums. \"I want 3,\" Victor yelled shyly. Soon Anna had 2 Plums below the stairs and "
            "Victor had 3.\n"
            "So Victor and Anna left Venice, and Victor felt grateful.");
  EXPECT_EQ(fnv(stories_text(1, 100'000)), 0x4853FB5005EF15AAu);
  const std::string text = stories_text(1, corpus_bytes);
  EXPECT_EQ(text.size(), 7999992u);
  EXPECT_EQ(fnv(text), 0xA576F1E29A7915A5u);
  EXPECT_NE(fnv(stories_text(2, 100'000)), 0x4853FB5005EF15AAu);
}

TEST(Stories, AreAFunctionOfSeedAndIndex) {
  const std::string third = story(5, 3);
  (void)story(6, 0);
  EXPECT_EQ(story(5, 3), third);
  EXPECT_NE(story(5, 4), third);
  EXPECT_NE(story(6, 3), third);
}

TEST(Stories, FillTheBytesWithWholeStories) {
  const std::string large = stories_text(3, 10'000);
  const std::string first = story(3, 0);
  const int64_t one = static_cast<int64_t>(first.size() + story_separator.size());
  EXPECT_EQ(stories_text(3, one), first + "\n\n");
  EXPECT_EQ(stories_text(3, one - 1), "");
  EXPECT_EQ(stories_text(3, 0), "");
  for (int64_t bytes : {one, int64_t{5'000}, int64_t{9'999}}) {
    const std::string text = stories_text(3, bytes);
    EXPECT_LE(static_cast<int64_t>(text.size()), bytes);
    EXPECT_TRUE(large.starts_with(text));
    EXPECT_TRUE(text.ends_with("\n\n"));
  }
  EXPECT_GT(static_cast<int64_t>(large.size()), 10'000 - longest_story - 2);
}

TEST(Stories, AreShortLinesOfAscii) {
  size_t longest = 0, shortest = 1000;
  for (const std::string& text : corpus()) {
    longest = std::max(longest, text.size());
    shortest = std::min(shortest, text.size());
    ASSERT_EQ(text.find("\n\n"), std::string::npos);
    for (char c : text) ASSERT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << text;
  }
  EXPECT_EQ(GrammarReader::longest(stories_grammar()), longest_story);
  EXPECT_LE(static_cast<int64_t>(longest), longest_story);
  EXPECT_GT(static_cast<int64_t>(longest), longest_story - 50);
  EXPECT_GE(shortest, 100u);
}

TEST(Stories, HaveTheEntropyThatIsStated) {
  // Monte Carlo: the mean of - ln p(story), and of the length, over independent stories.
  const StoriesOptimum optimum = stories_optimum();
  double sum = 0, squares = 0, length = 0, length_squares = 0;
  const double n = 40'000;
  for (uint64_t i = 0; i < static_cast<uint64_t>(n); ++i) {
    const std::string text = story(11, i);
    const double information = -GrammarReader::log_probability(stories_grammar(), text);
    const double size = static_cast<double>(text.size());
    ASSERT_TRUE(std::isfinite(information)) << text;
    sum += information;
    squares += information * information;
    length += size;
    length_squares += size * size;
  }
  const auto standard_error = [n](double total, double total_squares) {
    return std::sqrt((total_squares / n - total * total / (n * n)) / n);
  };
  EXPECT_NEAR(sum / n, optimum.nats_per_story, 4 * standard_error(sum, squares));
  EXPECT_NEAR(length / n, optimum.characters_per_story, 4 * standard_error(length, length_squares));
  EXPECT_LT(standard_error(sum, squares), 0.001 * optimum.nats_per_story);  // the test detects 0.4 %
}

TEST(Stories, EveryCharacterCountsInTheOptimum) {
  const StoriesOptimum optimum = stories_optimum();
  EXPECT_EQ(stories_grammar().first_character_entropy(), 0.0);
  EXPECT_DOUBLE_EQ(optimum.nats_per_character, optimum.nats_per_story / optimum.characters_per_story);
  EXPECT_NEAR(optimum.nats_per_story, 42.245918534696, 1e-9);
  EXPECT_NEAR(optimum.characters_per_story, 218.266969507101, 1e-9);
}

TEST(Stories, OfOtherGrammarsAreNotRead) {
  const std::string text = story(1, 0);
  EXPECT_TRUE(std::isfinite(GrammarReader::log_probability(stories_grammar(), text)));
  std::string changed = text;
  changed[changed.size() / 2] ^= 1;
  EXPECT_EQ(GrammarReader::log_probability(stories_grammar(), changed), -INFINITY);
  EXPECT_EQ(GrammarReader::log_probability(stories_grammar(), text + "\n\n"), -INFINITY);
}

using Words = std::vector<std::string_view>;

/// Words with the blank before them and the punctuation after them: the wider context.
Words cut_at_blanks(std::string_view text) {
  Words words;
  while (!text.empty()) {
    const size_t end = std::min(text.find_first_of(" \n", 1), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return words;
}

/// Words with the blank before them, punctuation apart: the smaller vocabulary.
Words cut_at_punctuation(std::string_view text) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  Words words;
  while (!text.empty()) {
    size_t end = text[0] == ' ' && text.size() > 1 ? 2 : 1;
    while (letter(text[end - 1]) && end < text.size() && letter(text[end])) ++end;
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return words;
}

struct Loss {
  double held_out;  ///< loss on the last tenth, nats per character
  double seen;      ///< loss on the first thousand stories of the other nine tenths, the training data
};

double loss_of(const test::WordNgram& model, Words (*cut)(std::string_view), size_t begin, size_t end) {
  double sum = 0, characters = 0;
  for (size_t i = begin; i < end; ++i) {
    sum -= model.log_probability(cut(corpus()[i]));
    characters += static_cast<double>(corpus()[i].size());
  }
  return sum / characters;
}

Loss ngram_loss(Words (*cut)(std::string_view), test::Smoothing smoothing) {
  const size_t trained = corpus().size() * 9 / 10;
  test::WordNgram model(smoothing);
  for (size_t i = 0; i < trained; ++i) model.count(cut(corpus()[i]));
  model.finish();
  EXPECT_NEAR(model.total_probability(cut(std::string_view(corpus()[0]).substr(0, 50))), 1.0, 1e-9);
  return {loss_of(model, cut, trained, corpus().size()), loss_of(model, cut, 0, 1000)};
}

TEST(Stories, AreBeyondAWordFiveGram) {
  const double optimum = stories_optimum().nats_per_character;
  for (auto cut : {cut_at_blanks, cut_at_punctuation}) {
    for (auto smoothing : {test::Smoothing::kneser_ney, test::Smoothing::witten_bell}) {
      const Loss loss = ngram_loss(cut, smoothing);
      EXPECT_GE(loss.held_out, 1.15 * optimum);
      EXPECT_LT(loss.seen, 0.95 * loss.held_out);  // control: the test detects a lower loss
    }
  }
}

// The quickstart's model answers these: each answer stands in the story, and the characters are the story's.
// The words that the preferences divide are the grammar's, so that the best policy is known.
TEST(StoryPreferences, DivideTheFeelingsOfTheGrammar) {
  const auto& lists = stories_source().lists;
  const auto feelings = std::ranges::find_if(lists, [](const WordList& list) { return list.name == "feeling"; });
  ASSERT_NE(feelings, lists.end());
  EXPECT_EQ(std::ranges::count_if(feelings->entries, is_happy), 7);
  EXPECT_EQ(feelings->entries.size(), 12u);
  int64_t bytes = 0, pairs = 0;
  const int64_t count =
      write_preferences(3, 100000, [&](std::string_view prompt, std::string_view chosen, std::string_view rejected) {
        ++pairs;
        bytes += static_cast<int64_t>(prompt.size() + chosen.size() + rejected.size());
        EXPECT_TRUE(prompt.ends_with('\n'));
        EXPECT_TRUE(is_happy(last_feeling(chosen))) << chosen;
        EXPECT_FALSE(last_feeling(rejected).empty() || is_happy(last_feeling(rejected))) << rejected;
        EXPECT_EQ(chosen.substr(0, chosen.rfind(' ')), rejected.substr(0, rejected.rfind(' ')));
      });
  EXPECT_EQ(count, pairs);
  EXPECT_GT(bytes, 99000);
}

TEST(StoryQuestions, AreAnsweredByTheStory) {
  std::set<std::string> kinds;
  for (uint64_t index = 0; index < 200; ++index) {
    const std::string text = story(7, index);
    const std::vector<StoryQuestion> questions = questions_about(text);
    EXPECT_GE(questions.size(), 3u);
    for (const StoryQuestion& one : questions) {
      kinds.insert(one.question.substr(0, one.question.find(' ', 5)));
      std::string word = one.answer.substr(one.answer.rfind(' ') + 1);
      word.pop_back();
      std::string lower = word;
      lower.front() = static_cast<char>(std::tolower(static_cast<unsigned char>(lower.front())));
      EXPECT_TRUE(text.find(word) != std::string::npos || text.find(lower) != std::string::npos) << text << one.answer;
    }
  }
  EXPECT_THAT(kinds,
              ElementsAre("How many", "What animal", "What color", "What town", "When was", "Who fed", "Who had"));
  const StoryQuestion color = questions_about(
      "One snowy night Zack met Jack in Paris.\nZack had a mint Umbrella and some bold honey. \"I like your "
      "Umbrella,\" "
      "said Jack kindly. So Zack hid his Umbrella in the boat.\nSo Jack and Zack left Paris, and Jack felt warm.")[2];
  EXPECT_EQ(color.question + " " + color.answer, "What color was the Umbrella? Mint.");
}

}  // namespace
}  // namespace llmtrain
