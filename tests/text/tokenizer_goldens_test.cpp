// Small tokenizers with every component, compared with the Python packages on difficult texts
// (tests/reference/tokenizers/make_tokenizer_goldens.py).

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "text/load_tokenizer.hpp"
#include "text/unicode/characters.hpp"

namespace llmtrain {
namespace {

const std::string folder = "tests/reference/tokenizers/synthetic/";

const nlohmann::json& goldens() {
  static const nlohmann::json document = nlohmann::json::parse(std::ifstream(folder + "goldens.json"));
  return document;
}

/// Prints bytes that are not UTF-8 like the packages, each as U+FFFD.
std::string replaced(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const Character c = character_at(text, i);
    append_code_point(out, is_stray_byte(c.code) ? U'\uFFFD' : c.code);
    i += c.length;
  }
  return out;
}

std::vector<std::string> names() {
  std::vector<std::string> all;
  for (const auto& [name, cases] : goldens()["tokenizers"].items()) all.push_back(name);
  return all;
}

class TokenizerGoldens : public testing::TestWithParam<std::string> {};

TEST_P(TokenizerGoldens, IdsRangesAndText) {
  const auto tokenizer = load_tokenizer(folder + GetParam());
  const nlohmann::json& cases = goldens()["tokenizers"][GetParam()];
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string text = goldens()["texts"][i];
    SCOPED_TRACE(nlohmann::json(text).dump());
    std::vector<int32_t> ids, again;
    std::vector<TextRange> ranges;
    tokenizer->encode(text, ids);
    EXPECT_EQ(ids, cases[i]["ids"].get<std::vector<int32_t>>());
    tokenizer->encode_with_ranges(text, again, ranges);
    EXPECT_EQ(again, ids);
    EXPECT_EQ(replaced(tokenizer->decode(ids)), cases[i]["decoded"].get<std::string>());
    if (cases[i].contains("ranges")) {
      std::vector<std::vector<size_t>> pairs;
      pairs.reserve(ranges.size());
      for (const TextRange& range : ranges) pairs.push_back({range.begin, range.end});
      EXPECT_EQ(pairs, cases[i]["ranges"].get<decltype(pairs)>());
    }
    if (cases[i].contains("special")) {
      tokenizer->add_special_tokens(again, &ranges);
      EXPECT_EQ(again, cases[i]["special"].get<std::vector<int32_t>>());
      EXPECT_EQ(ranges.size(), again.size());
    }
  }
}

TEST_P(TokenizerGoldens, StoredFormIsTheSameTokenizer) {
  const auto tokenizer = load_tokenizer(folder + GetParam());
  const auto stored = make_tokenizer_from(tokenizer->serialized());
  EXPECT_EQ(stored->serialized(), tokenizer->serialized());
  EXPECT_EQ(stored->eos_id(), tokenizer->eos_id());
  EXPECT_EQ(stored->vocabulary_size(), tokenizer->vocabulary_size());
  std::vector<int32_t> ids;
  stored->encode(goldens()["texts"][5].get<std::string>(), ids);
  EXPECT_EQ(ids, goldens()["tokenizers"][GetParam()][5]["ids"].get<std::vector<int32_t>>());
}

/// A text that is cut at any position that a tokenizer allows gives the same ids.
TEST_P(TokenizerGoldens, PartsGiveTheIdsOfTheWhole) {
  const auto tokenizer = load_tokenizer(folder + GetParam());
  if (!tokenizer->is_segmentable()) GTEST_SKIP() << "a tokenizer whose steps need the whole text";
  int cuts = 0;
  for (const nlohmann::json& item : goldens()["texts"]) {
    const std::string text = item;
    std::vector<int32_t> whole;
    tokenizer->encode(text, whole);
    for (size_t from = 0; from < text.size();) {
      const size_t found = tokenizer->find_cut(std::string_view(text).substr(from));
      if (found == std::string_view::npos) break;
      const size_t cut = from + found;
      std::vector<int32_t> parts;
      tokenizer->encode_segment(std::string_view(text).substr(0, cut), true, parts);
      tokenizer->encode_segment(std::string_view(text).substr(cut), false, parts);
      EXPECT_EQ(parts, whole) << nlohmann::json(text).dump() << " at " << cut;
      from = cut;
      ++cuts;
    }
  }
  EXPECT_GT(cuts, 20);
}

INSTANTIATE_TEST_SUITE_P(Synthetic, TokenizerGoldens, testing::ValuesIn(names()), [](const auto& name) {
  std::string clean = name.param;
  for (char& c : clean) c = c == '.' ? '_' : c;
  return clean;
});

}  // namespace
}  // namespace llmtrain
