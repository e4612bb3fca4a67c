#include "data/quality/duplicates.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <string>

namespace llmtrain {
namespace {

using testing::ElementsAre;
using Pair = std::array<int64_t, 2>;

std::string words(uint32_t seed, int count) {
  std::mt19937 random(seed);
  std::string text;
  for (int w = 0; w < count; ++w) text += "word" + std::to_string(random() % 5000) + " ";
  return text;
}

DocumentPrint print_of(const std::string& text) {
  SimHash hash;
  hash.add(text);
  return {std::hash<std::string>()(text), hash.bits(), hash.runs() >= min_runs};
}

TEST(SimHash, IsNearForTextsThatAreNearlyTheSame) {
  const std::string text = words(1, 1000);
  std::string changed = text;
  changed.replace(changed.find(' '), 1, "x ");
  EXPECT_NE(changed, text);
  EXPECT_LE(std::popcount(print_of(text).similar ^ print_of(changed).similar), near_bits);
  EXPECT_EQ(print_of("One two\n three FOUR").similar, print_of(" one  two three four ").similar);
  EXPECT_GT(std::popcount(print_of(text).similar ^ print_of(words(2, 1000)).similar), 10) << "the control";
  EXPECT_FALSE(print_of("a few words").has_words);
}

TEST(Duplicates, ExactAndNear) {
  const std::string text = words(1, 2000);
  std::string near = text;
  near.replace(near.find(' '), 1, "x ");
  std::vector<DocumentPrint> prints = {print_of(text),         print_of(words(2, 2000)), print_of(text),
                                       print_of(near),         print_of(words(3, 500)),  print_of("short text"),
                                       print_of("short text"), print_of("short text!")};
  const DuplicateCounts counts = find_duplicates(prints, 10);
  EXPECT_EQ(counts.exact, 2);
  EXPECT_THAT(counts.exact_pairs, ElementsAre(Pair{0, 2}, Pair{5, 6}));
  EXPECT_EQ(counts.near, 1);
  EXPECT_THAT(counts.near_pairs, ElementsAre(Pair{0, 3}));
}

TEST(Duplicates, FindsWhatComparingAllPairsFinds) {
  std::mt19937_64 random(5);
  std::vector<DocumentPrint> prints;
  for (int d = 0; d < 3000; ++d) {
    uint64_t bits = random();
    if (d > 0 && random() % 3 == 0) {
      bits = prints[random() % prints.size()].similar;
      for (uint64_t flips = random() % 6; flips > 0; --flips) bits ^= uint64_t{1} << random() % 64;
    }
    prints.push_back({random(), bits, true});
  }
  std::vector<Pair> expected;
  for (size_t later = 0; later < prints.size(); ++later) {
    for (size_t earlier = 0; earlier < later; ++earlier) {
      if (std::popcount(prints[earlier].similar ^ prints[later].similar) > near_bits) continue;
      expected.push_back({static_cast<int64_t>(earlier), static_cast<int64_t>(later)});
      break;
    }
  }
  EXPECT_GT(expected.size(), 300U);
  EXPECT_EQ(find_duplicates(prints, 3000).near_pairs, expected);
}

}  // namespace
}  // namespace llmtrain
