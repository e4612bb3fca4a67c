// Tokenizer folders against Transformers' AutoTokenizer (tests/reference/tokenizers/make_folder_goldens.py), and
// regexes without native code against Oniguruma in the tokenizers package (make_regex_goldens.py).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/error.hpp"
#include "harness/temporary_folder.hpp"
#include "text/encode_stream.hpp"
#include "text/files/tokenizer_files.hpp"
#include "text/pipeline/pre_tokenizer.hpp"

namespace llmtrain {
namespace {

using testing::HasSubstr;

const std::string goldens = "tests/reference/tokenizers/";

std::string read(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

std::vector<int32_t> encode(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  tokenizer.encode(text, ids);
  return ids;
}

TEST(TokenizerFolder, IsReadAsAutoTokenizerReadsIt) {
  const auto document = nlohmann::ordered_json::parse(read(goldens + "folder_goldens.json"));  // keys in order
  int changed = 0;  // the control: texts that the main file alone splits differently
  for (const auto& [name, one] : document["folders"].items()) {
    SCOPED_TRACE(name);
    const test::TemporaryFolder folder;
    const std::string base = one["base"];
    std::string main = read(goldens + "synthetic/" + base);
    if (!one["patch"].empty()) {
      auto json = nlohmann::ordered_json::parse(main);
      json.update(one["patch"]);
      main = json.dump();
    }
    write(folder.text() + (base.ends_with(".json") ? "/tokenizer.json" : "/tokenizer.model"), main);
    const auto bare = load_tokenizer(folder.text());
    for (const auto& [file, content] : one["files"].items()) write(folder.text() + "/" + file, content.dump());
    const auto tokenizer = load_tokenizer(folder.text());
    const auto stored = make_tokenizer_from(tokenizer->serialized());
    EXPECT_EQ(tokenizer->vocabulary_size(), one["size"].get<int64_t>());
    for (const auto& [key, id] :
         {std::pair{"eos", tokenizer->eos_id()}, {"bos", tokenizer->bos_id()}, {"pad", tokenizer->pad_id()}}) {
      EXPECT_EQ(id, one[key].is_null() ? id : one[key].get<int32_t>()) << key;
    }
    for (size_t i = 0; i < one["ids"].size(); ++i) {
      if (one["ids"][i].is_null()) continue;
      const std::string text = document["texts"][i];
      SCOPED_TRACE(document["texts"][i].dump());
      const std::vector<int32_t> ids = encode(*tokenizer, text);
      EXPECT_EQ(ids, one["ids"][i].get<std::vector<int32_t>>());
      EXPECT_EQ(encode(*stored, text), ids);
      std::vector<int32_t> streamed;
      EncodeStream stream(*tokenizer, 7);
      for (size_t at = 0; at < text.size(); at += 3) stream.add(std::string_view(text).substr(at, 3), streamed);
      stream.finish(streamed);
      EXPECT_EQ(streamed, ids);
      changed += encode(*bare, text) != ids ? 1 : 0;
    }
  }
  EXPECT_GT(changed, 200);
}

SplitBehavior behavior_of(const std::string& name) {
  constexpr const char* names[] = {"removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"};
  const auto* const found = std::find(std::begin(names), std::end(names), name);
  return static_cast<SplitBehavior>(found - std::begin(names));
}

TEST(AnyRegex, CutsAsOnigurumaDoes) {
  const nlohmann::json document = nlohmann::json::parse(read(goldens + "regex_goldens.json"));
  for (const nlohmann::json& one : document["cases"]) {
    SCOPED_TRACE(one["regex"].dump() + " " + one["behavior"].dump() + one["invert"].dump());
    const auto split = make_regex_split(std::make_unique<Regex>(one["regex"].get<std::string>(), "t"),
                                        behavior_of(one["behavior"]), one["invert"]);
    for (size_t i = 0; i < document["texts"].size(); ++i) {
      const std::string text = document["texts"][i];
      std::vector<size_t> pieces;
      const auto add = [&](const TextView& chunk) {
        const auto begin = static_cast<size_t>(chunk.text.data() - text.data());
        pieces.insert(pieces.end(), {begin, begin + chunk.text.size()});
      };
      split->apply({text, nullptr, true, 0}, TextSink(add));
      EXPECT_EQ(pieces, one["pieces"][i].get<std::vector<size_t>>()) << document["texts"][i].dump();
    }
  }
  for (const nlohmann::json& regex : document["refused"]) {
    EXPECT_THROW(translate_regex(regex.get<std::string>(), "t"), UserError) << regex.dump();
  }
}

TEST(AnyRegex, BytesThatAreNoUtf8AreCharacters) {
  std::vector<size_t> places;
  const Regex regex("[^a]+", "t");
  regex.for_matches(
      "a\xFF\xC3z\xE4\xB8"
      "a\xE4\xB8\xAD",
      [&](size_t begin, size_t end) {
        places.insert(places.end(), {begin, end});
      });
  EXPECT_THAT(places, testing::ElementsAre(1, 6, 7, 10));
}

std::string refusal(const std::string& pattern, const std::string& text) {
  try {
    const Regex regex(pattern, "t.json.pre_tokenizer");
    regex.for_matches(text, [](size_t, size_t) {});
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::bad_content);
    return error.what();
  }
  return "";
}

/// An ordinary pattern is accepted on a long line, and the hostile one terminates.
TEST(AnyRegex, HostilePatternsEnd) {
  const std::string line(1 << 20, 'a');
  EXPECT_EQ(refusal(R"(\p{L}+|\s+(?!\S)|(?:ab)*)", line), "");
  EXPECT_EQ(refusal("(?:a|b)+", line), "");
  EXPECT_THAT(refusal(R"((a+)+\d)", std::string(64, 'a')), HasSubstr(R"(t.json.pre_tokenizer: the regex (a+)+\d)"));
  EXPECT_THAT(refusal("(?:", "a"), HasSubstr("has a ( without )"));
}

}  // namespace
}  // namespace llmtrain
