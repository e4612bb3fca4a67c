#include "text/bpe_training/word_counts.hpp"

#include <gtest/gtest.h>

#include <map>

#include "core/error.hpp"
#include "core/parallel_for.hpp"

namespace llmtrain {
namespace {

std::map<std::string, uint64_t> contents(const WordCounts& counts) {
  std::map<std::string, uint64_t> words;
  counts.for_each([&](std::string_view word, uint64_t count) {
    EXPECT_TRUE(words.emplace(word, count).second) << "twice: " << word;
  });
  return words;
}

std::string word_of(uint64_t n) { return "w" + std::to_string(n * n % 30011); }

TEST(WordCounts, CountsAsAMapDoes) {
  WordCounts counts;
  std::map<std::string, uint64_t> expected;
  {
    WordCounter counter(counts);
    for (uint64_t n = 0; n < 200000; ++n) {
      counter.add(word_of(n));
      ++expected[word_of(n)];
    }
  }
  EXPECT_EQ(contents(counts), expected);
  EXPECT_EQ(counts.size(), expected.size());
  EXPECT_EQ(counts.total(), 200000u);
}

TEST(WordCounts, ThreadsMayCountAtOnce) {
  WordCounts counts;
  parallel_for(4, 4, [&](size_t) {
    WordCounter counter(counts);
    for (uint64_t n = 0; n < 50000; ++n) counter.add(word_of(n));
  });
  std::map<std::string, uint64_t> expected;
  for (uint64_t n = 0; n < 50000; ++n) expected[word_of(n)] += 4;
  EXPECT_EQ(contents(counts), expected);
}

TEST(WordCounts, WordsOfEveryLengthAndByte) {
  WordCounts counts;
  const std::string long_word(1'500'000, 'x');
  {
    WordCounter counter(counts);
    for (int repeat = 0; repeat < 3; ++repeat) {
      for (const std::string& word :
           {std::string(), std::string("\0", 1), std::string("\xFF\xFE\x80"), long_word, long_word + "y",
            std::string(300000, 'z'), std::string(127, 'a'), std::string(128, 'a')}) {
        counter.add(word);
      }
    }
  }
  const auto words = contents(counts);
  EXPECT_EQ(words.size(), 8u);
  for (const auto& [word, count] : words) EXPECT_EQ(count, 3u);
  EXPECT_EQ(words.count(long_word + "y"), 1u);
}

TEST(WordCounts, RanksTellEachOther) {
  WordCounts mine, theirs;
  for (uint64_t n = 0; n < 5000; ++n) mine.add(word_of(n), n);
  theirs.add("w0", uint64_t{1} << 50);
  theirs.add("only there", 7);
  for (size_t s = 0; s < WordCounts::shards; ++s) theirs.add_serialized(mine.serialized(s));
  auto expected = contents(mine);
  expected["w0"] += uint64_t{1} << 50;
  expected["only there"] += 7;
  EXPECT_EQ(contents(theirs), expected);
  theirs.clear();
  EXPECT_EQ(theirs.size(), 0u);
  EXPECT_THROW(theirs.add_serialized("\x05"
                                     "ab"),
               Error);
  EXPECT_THROW(theirs.add_serialized("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"), Error);
}

}  // namespace
}  // namespace llmtrain
