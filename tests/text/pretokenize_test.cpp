#include "text/split/pretokenize.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

using Pieces = std::vector<std::string_view>;

constexpr std::string_view gpt2_regex = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The texts of tests/reference/tokenizers/make_split_goldens.py.
std::string code_points_text() {
  std::string text;
  const auto add = [&](char32_t c) {
    for (const char* part : {"a", "b ", "1", "", "'", "A ", "\n", "/"}) {
      text += part;
      append_code_point(text, c);
    }
    text += ' ';
  };
  for (char32_t c = 0; c < 0x32000; ++c) {
    if (c < 0xD800 || c >= 0xE000) add(c);
  }
  for (char32_t c = 0x32000; c < code_point_limit; c += 257) add(c);
  return text;
}

std::string mixture_text() {
  constexpr char32_t mix[] = {0x20,   0x20,   0x20,  0x20,  0x09,   0x0A,    0x0A,   0x0D,   0x0B,   0x85,   0xA0,
                              0x2028, 0x3000, 0x27,  0x27,  0x27,   0x73,    0x74,   0x72,   0x65,   0x76,   0x6D,
                              0x6C,   0x64,   0x53,  0x54,  0x52,   0x45,    0x56,   0x4D,   0x4C,   0x44,   0x17F,
                              0x212A, 0x61,   0x62,  0x5A,  0xE9,   0xDF,    0x1C5,  0x2B0,  0xAA,   0x30,   0x31,
                              0x39,   0x663,  0xB2,  0xBD,  0x2167, 0x4E2D,  0x9FA6, 0x306E, 0x30AB, 0xD55C, 0x10D0,
                              0x1C90, 0x0921, 0x301, 0x903, 0x20DD, 0x1F600, 0x200D, 0xFE0F, 0x2E,   0x2C,   0x21,
                              0x2F,   0x2F,   0x2D,  0x5F,  0x28,   0xAB,    0x201C, 0x3001, 0xFF01, 0xFF5E, 0x2B,
                              0x24,   0x5E,   0x60,  0x7C,  0x20AC, 0x00,    0x01,   0x7F,   0xE000, 0x378,  0x10FFFF};
  std::string text;
  uint64_t state = 1;
  for (int i = 0; i < 300000; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const char32_t c = mix[(state >> 33) % std::size(mix)];
    const uint64_t more = (state >> 58) % 4 == 0 ? (state >> 60) % 4 : 0;
    for (uint64_t k = 0; k <= more; ++k) append_code_point(text, c);
  }
  return text;
}

uint64_t hash_of_ends(std::string_view text, const Pieces& pieces) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const std::string_view piece : pieces) {
    const auto end = static_cast<uint64_t>(piece.data() + piece.size() - text.data());
    for (int shift = 0; shift < 64; shift += 8) hash = (hash ^ ((end >> shift) & 0xFF)) * 0x100000001B3u;
  }
  return hash;
}

std::string joined_with_bars(std::string_view text, const SplitPattern& pattern) {
  Pieces pieces;
  pattern.split(text, pieces);
  std::string out;
  for (const std::string_view piece : pieces) out += std::string(piece) + '|';
  return out;
}

class SplitGoldens : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    goldens = nlohmann::json::parse(read_file("tests/reference/tokenizers/split_goldens.json"));
  }
  /// Every pattern splits the text like the Python package, and a pattern that should differ does differ.
  static void check(const std::string& name, const std::string& text) {
    ASSERT_FALSE(text.empty()) << name;
    std::map<std::string, int> results;
    for (const nlohmann::json& golden : goldens.at("patterns")) {
      const std::string regex = golden.at("regex");
      const SplitPattern* pattern = SplitPattern::find(regex);
      ASSERT_NE(pattern, nullptr) << regex;
      Pieces pieces;
      pattern->split(text, pieces);
      const nlohmann::json& expected = golden.at("ends").at(name);
      EXPECT_EQ(pieces.size(), expected.at(0).get<size_t>()) << name << ' ' << regex;
      EXPECT_EQ(hash_of_ends(text, pieces), std::stoull(expected.at(1).get<std::string>(), nullptr, 16))
          << name << ' ' << regex;
      ++results[expected.at(1)];
    }
    const size_t different = name == "mixture" ? 20 : 3;  // three spellings of GPT-2's pattern add one each
    EXPECT_GE(results.size(), different) << name << ": the text does not tell patterns apart";
  }
  static nlohmann::json goldens;
};
nlohmann::json SplitGoldens::goldens;

TEST_F(SplitGoldens, EveryCodePointInContexts) { check("code_points", code_points_text()); }
TEST_F(SplitGoldens, RandomMixture) { check("mixture", mixture_text()); }
TEST_F(SplitGoldens, Corpora) {
  const char* data = std::getenv("LLMTRAIN_DATA");
  if (data == nullptr) GTEST_SKIP() << "LLMTRAIN_DATA is not set";
  for (const auto& [name, unused] : goldens.at("patterns").at(0).at("ends").items()) {
    if (name == "code_points" || name == "mixture") continue;
    if (std::filesystem::exists(std::string(data) + "/" + name)) check(name, read_file(std::string(data) + "/" + name));
  }
}

TEST(SplitPattern, UnknownRegexIsNotFound) {
  EXPECT_NE(SplitPattern::find(gpt2_regex), nullptr);
  EXPECT_EQ(SplitPattern::find(std::string(gpt2_regex) + "+"), nullptr);
  EXPECT_EQ(SplitPattern::find(gpt2_regex.substr(1)), nullptr);
  EXPECT_EQ(SplitPattern::find(""), nullptr);
  EXPECT_EQ(SplitPattern::find(R"((a+)+b)"), nullptr);
  EXPECT_EQ(SplitPattern::find(std::string(size_t{100} << 20, '(')), nullptr);
}

TEST(SplitPattern, NamesOfWholePreTokenizers) {
  for (const char* name : {"gpt2", "llama3", "qwen2", "o200k", "tekken", "deepseek3"}) {
    ASSERT_NE(SplitPattern::find_name(name), nullptr) << name;
    EXPECT_EQ(SplitPattern::find_name(name)->name(), name);
    EXPECT_EQ(SplitPattern::find(SplitPattern::find_name(name)->regex()), SplitPattern::find_name(name));
  }
  EXPECT_EQ(SplitPattern::find_name("gpt4"), nullptr);
  EXPECT_EQ(SplitPattern::find_name("line end"), nullptr);  // a step of a tokenizer
  EXPECT_GE(SplitPattern::known().size(), 15u);
}

TEST(SplitPattern, LineEndsMayBeWrittenAsThemselves) {
  EXPECT_NE(SplitPattern::find("[\r\n]"), nullptr);
  EXPECT_EQ(SplitPattern::find("[\r\n]"), SplitPattern::find(R"([\r\n])"));
}

TEST(SplitPattern, TextsCutByHand) {
  const SplitPattern& gpt2 = *SplitPattern::find_name("gpt2");
  EXPECT_EQ(joined_with_bars("I'm  12 a-b\n\n c'S", gpt2), "I|'m| | 12| a|-|b|\n\n| c|'|S|");
  const SplitPattern& llama3 = *SplitPattern::find_name("llama3");
  EXPECT_EQ(joined_with_bars("I'M 12345 a-b.\n\n  c", llama3), "I|'M| |123|45| a|-b|.\n\n| | c|");
  EXPECT_EQ(joined_with_bars("", gpt2), "");
  EXPECT_EQ(joined_with_bars(" ", gpt2), " |");
}

TEST(SplitPattern, GapsBetweenMatchesArePieces) {
  const SplitPattern& digits = *SplitPattern::find(R"(\p{N})");
  EXPECT_EQ(joined_with_bars("ab12c", digits), "ab|1|2|c|");
  size_t begin = 0, end = 0;
  ASSERT_TRUE(digits.next("ab12c", 0, begin, end));
  EXPECT_EQ(begin, 2u);
  EXPECT_EQ(end, 3u);
  ASSERT_TRUE(digits.next("ab12c", 3, begin, end));
  EXPECT_EQ(begin, 3u);
  EXPECT_FALSE(digits.next("ab12c", 4, begin, end));
}

/// Splitting keeps all bytes in order, whatever they are.
TEST(SplitPattern, BrokenUtf8IsKept) {
  const std::string text =
      "a\xFF"
      "b \xC3(\xE4\xB8 \xF0\x9F\x98 \xED\xA0\x80 '\xC5 1\xC0\xAF\n\xF4\x90\x80\x80";
  for (const std::string_view name : SplitPattern::known()) {
    const SplitPattern* pattern = SplitPattern::find_name(name);
    if (pattern == nullptr) continue;
    Pieces pieces;
    pattern->split(text, pieces);
    std::string together;
    for (const std::string_view piece : pieces) {
      EXPECT_FALSE(piece.empty());
      together += piece;
    }
    EXPECT_EQ(together, text) << name;
  }
  EXPECT_EQ(joined_with_bars("a\xFF\xFE b", *SplitPattern::find_name("gpt2")), "a|\xFF\xFE| b|");
}

/// Twice the text takes about twice the time, for texts that are slow for backtracking engines.
TEST(SplitPattern, TimeIsLinearInTheText) {
  const auto seconds = [](const SplitPattern& pattern, const std::string& unit, const std::string& end, size_t bytes) {
    std::string text;
    while (text.size() < bytes) text += unit;
    text += end;
    Pieces pieces;
    const std::clock_t before = std::clock();  // processor time, so other processes do not count
    pattern.split(text, pieces);
    return static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  };
  const nlohmann::json goldens = nlohmann::json::parse(read_file("tests/reference/tokenizers/split_goldens.json"));
  ASSERT_GE(goldens.at("patterns").size(), 20u);
  for (const nlohmann::json& golden : goldens.at("patterns")) {
    const SplitPattern& pattern = *SplitPattern::find(golden.at("regex").get<std::string>());
    for (const char* unit : {" ", "\n ", "A", "\u00AAA", "1", "'", "\u0301", "/", "\xFF", " '", "aA"}) {
      // quadratic time would be hours for 1 MB
      EXPECT_LT(seconds(pattern, unit, "x", size_t{1} << 20), 5.0) << pattern.name() << " of " << unit;
    }
  }
}

}  // namespace
}  // namespace llmtrain
