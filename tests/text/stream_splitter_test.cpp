#include "text/split/stream_splitter.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

using Pieces = std::vector<std::string>;

Pieces whole(const SplitPattern& pattern, std::string_view text) {
  std::vector<std::string_view> pieces;
  pattern.split(text, pieces);
  return {pieces.begin(), pieces.end()};
}

/// Blocks of 1 to `longest` bytes, which also cut characters.
Pieces in_parts(const SplitPattern& pattern, std::string_view text, uint64_t seed, size_t longest) {
  StreamSplitter splitter(pattern);
  Pieces pieces;
  const auto add = [&](std::string_view piece) { pieces.emplace_back(piece); };
  while (!text.empty()) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const size_t part = std::min<size_t>(text.size(), 1 + (seed >> 33) % longest);
    splitter.add(text.substr(0, part), add);
    text.remove_prefix(part);
  }
  splitter.finish(add);
  return pieces;
}

std::string mixture(uint64_t seed) {
  constexpr char32_t mix[] = {' ', ' ', ' ',  '\n', '\r',  '\t', 0x85, 0x3000,  '\'',  '\'',   's',
                              'r', 'e', 'l',  'L',  0x17F, 'A',  'B',  0xAA,    0xE9,  0x4E2D, 0x301,
                              '1', '2', 0xBD, '.',  '/',   '!',  '+',  0x1F600, 0x200D};
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    append_code_point(text, mix[(seed >> 33) % std::size(mix)]);
    if (seed >> 58 == 7) text += '\xE4';  // broken
  }
  return text;
}

/// The words do not depend on where the text was cut.
TEST(StreamSplitter, GivesThePiecesOfTheWhole) {
  for (const std::string_view name : SplitPattern::known()) {
    const SplitPattern* pattern = SplitPattern::find_name(name);
    if (pattern == nullptr) continue;
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const std::string text = mixture(seed);
      const Pieces expected = whole(*pattern, text);
      for (const size_t longest : {size_t{1}, size_t{3}, size_t{40}, size_t{5000}}) {
        ASSERT_EQ(in_parts(*pattern, text, seed, longest), expected) << name << ", parts up to " << longest;
      }
    }
  }
}

/// The control: without holding text back the words would differ.
TEST(StreamSplitter, PartsApartAreOtherPieces) {
  const SplitPattern& pattern = *SplitPattern::find_name("gpt2");
  Pieces apart = whole(pattern, "they'l");
  for (const std::string& piece : whole(pattern, "l go")) apart.push_back(piece);
  EXPECT_NE(apart, whole(pattern, "they'll go"));
  StreamSplitter splitter(pattern);
  Pieces pieces;
  const auto add = [&](std::string_view piece) { pieces.emplace_back(piece); };
  splitter.add("they'l", add);
  EXPECT_EQ(pieces, Pieces{"they"});
  splitter.add("l go", add);
  splitter.finish(add);
  EXPECT_EQ(pieces, (Pieces{"they", "'ll", " go"}));
}

TEST(StreamSplitter, APieceWithoutEndIsCut) {
  const SplitPattern& pattern = *SplitPattern::find_name("gpt2");
  StreamSplitter splitter(pattern);
  size_t longest = 0, total = 0;
  const auto add = [&](std::string_view piece) {
    longest = std::max(longest, piece.size());
    total += piece.size();
  };
  const std::string part(100'000, 'x');
  for (int i = 0; i < 100; ++i) splitter.add(part, add);
  splitter.add(std::string(5'000'000, 'x'), add);
  splitter.finish(add);
  EXPECT_EQ(total, 15'000'000u);
  EXPECT_EQ(longest, StreamSplitter::longest_piece + 1);
}

}  // namespace
}  // namespace llmtrain
