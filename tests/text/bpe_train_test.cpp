#include "text/bpe_training/bpe_train.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.hpp"
#include "core/parallel_for.hpp"
#include "text/hf_folder/json_out.hpp"
#include "text/pipeline/byte_level.hpp"
#include "text/split/stream_splitter.hpp"
#include "text/unicode/code_points.hpp"

namespace llmtrain {
namespace {

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// The texts of tests/reference/tokenizers/make_bpe_goldens.py.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}
  uint64_t below(uint64_t n) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % n;
  }

 private:
  uint64_t state_;
};

std::string made_words() {
  constexpr const char* syllables[] = {"ba", "be", "bi", "bo", "da",  "de",  "di",      "do",
                                       "ka", "ke", "ki", "ko", "ma",  "me",  "mi",      "mo",
                                       "sa", "se", "si", "so", "tra", "gra", "\u00E9t", "\u4E2D"};
  Numbers numbers(3);
  std::string text;
  for (int i = 0; i < 40000; ++i) {
    const uint64_t kind = numbers.below(20);
    if (kind == 0) {
      text += std::to_string(numbers.below(1000));
    } else if (kind == 1) {
      text += numbers.below(2) != 0 ? ".\n" : "!\n\n\n";
    } else {
      const uint64_t length = 1 + numbers.below(4);
      for (uint64_t k = 0; k < length; ++k) {
        const uint64_t one = numbers.below(24), other = numbers.below(24);
        text += syllables[std::min(one, other)];
      }
    }
    text += numbers.below(30) == 0 ? "   " : " ";
  }
  return text;
}

std::string made_ab() {
  Numbers numbers(5);
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    const uint64_t runs = 1 + numbers.below(40);
    for (uint64_t k = 0; k < runs; ++k) {
      const char letter = "ab"[numbers.below(3) / 2];
      text.append(1 + numbers.below(3), letter);
    }
    text += numbers.below(9) != 0 ? ' ' : '\n';
  }
  return text;
}

/// Counts by lines with their ends, or as a whole; reads in blocks of `part` bytes like a file.
void count_words(const std::string& text, const std::string& split, bool whole, WordCounts& counts,
                 size_t part = 65536) {
  WordCounter counter(counts);
  StreamSplitter splitter(*SplitPattern::find_name(split));
  const auto add = [&](std::string_view word) { counter.add(word); };
  for (size_t line = 0; line < text.size();) {
    const size_t end = whole ? text.size() : std::min(text.find('\n', line), text.size() - 1) + 1;
    for (size_t i = line; i < end; i += part)
      splitter.add(std::string_view(text).substr(i, std::min(part, end - i)), add);
    splitter.finish(add);
    line = end;
  }
}

class Fnv {
 public:
  void add(std::string_view text) {
    for (const char byte : text) hash_ = (hash_ ^ static_cast<uint8_t>(byte)) * 0x100000001B3u;
    hash_ *= 0x100000001B3u;  // and a zero byte
  }
  uint64_t hash() const { return hash_; }

 private:
  uint64_t hash_ = 0xCBF29CE484222325u;
};

uint64_t hash_of_tokens(const BpeVocabulary& vocabulary) {
  Fnv hash;
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) hash.add(vocabulary.tokens[id]);
  return hash.hash();
}
uint64_t hash_of_merges(const BpeVocabulary& vocabulary) {
  Fnv hash;
  for (const auto& [left, right] : vocabulary.merges) {
    hash.add(std::string(vocabulary.tokens[static_cast<size_t>(left)]) + ' ' +
             std::string(vocabulary.tokens[static_cast<size_t>(right)]));
  }
  return hash.hash();
}
bool equal(const BpeVocabulary& a, const BpeVocabulary& b) {
  return hash_of_tokens(a) == hash_of_tokens(b) && a.merges == b.merges;
}

BpeVocabulary train(const std::string& text, const std::string& split, bool whole, const BpeTrainingOptions& options) {
  WordCounts counts;
  count_words(text, split, whole, counts);
  return train_bpe(counts, options);
}

/// Returns true if the text was there. Every vocabulary, list of merges and file equals the Python package's.
bool check_goldens(const std::string& prefix, int threads) {
  const nlohmann::json goldens = nlohmann::json::parse(read_file("tests/reference/tokenizers/bpe_goldens.json"));
  bool found = false;
  for (const nlohmann::json& golden : goldens.at("cases")) {
    const std::string name = golden.at("text");
    const bool made = name.starts_with("made:");
    if (made != prefix.empty() || (!made && !std::filesystem::exists(prefix + name))) continue;
    found = true;
    const std::string text = name == "made:words" ? made_words() : made ? made_ab() : read_file(prefix + name);
    const BpeTrainingOptions options{.vocabulary_size = golden.at("size"),
                                     .min_frequency = golden.at("least"),
                                     .special_tokens = golden.at("special").get<std::vector<std::string>>(),
                                     .threads = threads};
    const BpeVocabulary vocabulary = train(text, golden.at("split"), golden.at("whole"), options);
    const auto number = [&](const char* key) {
      return std::stoull(golden.at(key).at(1).get<std::string>(), nullptr, 16);
    };
    EXPECT_EQ(vocabulary.tokens.size(), golden.at("tokens").at(0).get<size_t>()) << golden.dump();
    EXPECT_EQ(vocabulary.merges.size(), golden.at("merges").at(0).get<size_t>()) << golden.dump();
    EXPECT_EQ(hash_of_tokens(vocabulary), number("tokens")) << golden.dump();
    EXPECT_EQ(hash_of_merges(vocabulary), number("merges")) << golden.dump();
    const std::string file =
        bpe_tokenizer_json(vocabulary, *SplitPattern::find_name(golden.at("split").get<std::string>()));
    Fnv hash_of_file;
    hash_of_file.add(file);
    EXPECT_EQ(file.size(), golden.at("file").at(0).get<size_t>()) << golden.dump();
    EXPECT_EQ(hash_of_file.hash(), number("file")) << golden.dump();
  }
  return found;
}

TEST(BpeTrain, MadeTextsAsThePythonPackage) {
  EXPECT_TRUE(check_goldens("", 1));
  EXPECT_TRUE(check_goldens("", 3));
}

TEST(BpeTrain, CorporaAsThePythonPackage) {
  const char* data = std::getenv("LLMTRAIN_DATA");
  if (data == nullptr) GTEST_SKIP() << "LLMTRAIN_DATA is not set";
  if (!check_goldens(std::string(data) + "/", 2)) GTEST_SKIP() << data << " has none of the corpora";
}

/// Merges of a published exercise with the other rule for ties: with that rule they are equal, without it they differ.
TEST(BpeTrain, TiesByBytesAsTheReferenceMerges) {
  const char* data = std::getenv("LLMTRAIN_DATA");
  const std::string folder = std::string(data == nullptr ? "" : data) + "/tokenizer/bpe_training/";
  if (!std::filesystem::exists(folder + "corpus.en")) GTEST_SKIP() << "LLMTRAIN_DATA has no bpe_training";
  BpeTrainingOptions options{
      .vocabulary_size = 500, .special_tokens = {"<|endoftext|>"}, .ties = BpeTrainingOptions::Ties::bytes};
  const auto merges = [&] {
    const BpeVocabulary vocabulary = train(read_file(folder + "corpus.en"), "gpt2", true, options);
    std::string lines;
    for (const auto& [left, right] : vocabulary.merges) {
      lines += std::string(vocabulary.tokens[static_cast<size_t>(left)]) + ' ' +
               std::string(vocabulary.tokens[static_cast<size_t>(right)]) + '\n';
    }
    return lines;
  };
  const std::string expected = read_file(folder + "reference-merges.txt");
  EXPECT_EQ(merges(), expected);
  options.ties = BpeTrainingOptions::Ties::ids;
  EXPECT_NE(merges(), expected);
}

/// By hand: "ab" 5 times, "bc" 4 times.
TEST(BpeTrain, FewWords) {
  WordCounts counts;
  counts.add("abc", 4);
  counts.add("ab", 1);
  const BpeVocabulary vocabulary = train_bpe(counts, {.vocabulary_size = 300, .special_tokens = {"<e>"}});
  ASSERT_EQ(vocabulary.tokens.size(), 259u);
  EXPECT_EQ(vocabulary.tokens[0], "<e>");
  EXPECT_EQ(vocabulary.tokens[1], "!");
  EXPECT_EQ(vocabulary.tokens[257], "ab");
  EXPECT_EQ(vocabulary.tokens[258], "abc");
  EXPECT_EQ(counts.size(), 0u);  // its memory is taken
}

TEST(BpeTrain, MinimumFrequencyEndsTheMerges) {
  WordCounts counts;
  counts.add("abc", 4);
  counts.add("ab", 1);
  EXPECT_EQ(train_bpe(counts, {.vocabulary_size = 300, .min_frequency = 5}).merges.size(), 1u);
}

TEST(BpeTrain, CountsAreSixtyFourBits) {
  WordCounts counts;
  counts.add("ab", uint64_t{1} << 40);
  counts.add("xyx", (uint64_t{1} << 40) - 1);  // 2^40 - 1 modulo 2^32 would be more
  counts.add("q!", 5);
  const BpeVocabulary vocabulary = train_bpe(counts, {.vocabulary_size = 259});
  EXPECT_EQ(vocabulary.tokens[256], "ab");
  EXPECT_EQ(vocabulary.tokens[257], "xy");
  EXPECT_EQ(vocabulary.tokens[258], "xyx");
}

TEST(BpeTrain, VocabularyOfMoreThanSixteenBits) {
  Numbers numbers(11);
  WordCounts narrow, wide;
  for (int i = 0; i < 60000; ++i) {
    std::string word;
    for (int k = 0; k < 6; ++k) word += static_cast<char>('a' + numbers.below(26));
    narrow.add(word);
    wide.add(word);
  }
  const BpeVocabulary a = train_bpe(narrow, {.vocabulary_size = 60000});
  const BpeVocabulary b = train_bpe(wide, {.vocabulary_size = 70000});
  ASSERT_EQ(a.tokens.size(), 60000u);
  ASSERT_EQ(b.tokens.size(), 70000u);
  for (size_t id = 0; id < a.tokens.size(); ++id) ASSERT_EQ(a.tokens[id], b.tokens[id]);
}

/// The order of words, the threads, and the way a text is read do not matter.
TEST(BpeTrain, OrderOfWordsDoesNotMatter) {
  const std::string text = made_words();
  const BpeTrainingOptions options{.vocabulary_size = 900, .special_tokens = {"<|endoftext|>"}};
  const BpeVocabulary expected = train(text, "gpt2", true, options);
  WordCounts other;
  other.add("  ", 1);
  other.add("zz", 1);
  const size_t half = text.find("\n\n\n", text.size() / 2) + 3;
  parallel_for(2, 2, [&](size_t i) {
    count_words(i == 0 ? text.substr(half) : text.substr(0, half), "gpt2", true, other, i == 0 ? 1 : 77);
  });
  BpeTrainingOptions threaded = options;
  threaded.threads = 4;
  const BpeVocabulary found = train_bpe(other, threaded);
  EXPECT_TRUE(equal(found, expected));
  WordCounts fewer;
  count_words(text.substr(half), "gpt2", true, fewer);
  EXPECT_FALSE(equal(train_bpe(fewer, options), expected));
}

/// A word without any border, of a million bytes, costs as much as many short ones.
TEST(BpeTrain, LongWords) {
  WordCounts counts;
  std::string word;
  Numbers numbers(13);
  for (int i = 0; i < 1'000'000; ++i) word += static_cast<char>('a' + numbers.below(20));
  counts.add(word);
  counts.add(std::string(1'000'000, 'z'));
  const BpeVocabulary vocabulary = train_bpe(counts, {.vocabulary_size = 4000});
  EXPECT_EQ(vocabulary.tokens.size(), 4000u);
  EXPECT_EQ(vocabulary.tokens[256], "zz");
}

void expect_refusal(const BpeTrainingOptions& options, const std::string& part) {
  WordCounts counts;
  try {
    train_bpe(counts, options);
    ADD_FAILURE() << "accepted: " << part;
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::command_line);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(BpeTrain, RefusesWhatCannotBe) {
  expect_refusal({.vocabulary_size = 256, .special_tokens = {"<e>"}}, "at least 257");
  expect_refusal({.vocabulary_size = max_bpe_tokens + 1}, "at most");
  expect_refusal({.special_tokens = {""}}, "empty");
  expect_refusal({.special_tokens = {"<e>", "<e>"}}, "repeated");
  expect_refusal({.special_tokens = {"\xFF"}}, "UTF-8");
  WordCounts none;
  EXPECT_EQ(train_bpe(none, {.vocabulary_size = 257, .special_tokens = {"<e>"}}).tokens.size(), 257u);
}

}  // namespace
}  // namespace llmtrain
