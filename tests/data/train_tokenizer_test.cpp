#include "data/tokenize/train_tokenizer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "data/files/input_kind.hpp"
#include "data_files.hpp"
#include "parallel/local_communicator.hpp"
#include "text/split/stream_splitter.hpp"

namespace llmtrain {
namespace {

using test::Folder;
using test::refusal;
using testing::AllOf;
using testing::HasSubstr;

using Words = std::map<std::string, uint64_t>;

/// Sentences, spaces, line ends; every `long_line`th line has three million bytes.
std::string some_text(uint64_t seed, int lines, int long_line = 0) {
  const std::vector<std::string> words = {"the", " house", " I'll", " 1234",          ".", "\u4E2D\u6587",
                                          "  ",  "\t",     "/\r",   " \u00E9t\u00E9", "!"};
  std::string text;
  for (int line = 1; line <= lines; ++line) {
    const size_t least = long_line > 0 && line % long_line == 0 ? 3'000'000 : 0;
    const size_t begin = text.size();
    do {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      text += words[(seed >> 33) % words.size()];
    } while (text.size() < begin + least || (seed >> 50) % 12 != 0);
    text += (seed >> 40) % 5 == 0 ? "\n\n" : "\n";
  }
  return text;
}

/// Counts in one pass over the whole text.
Words expected_words(const std::vector<std::string>& documents, const SplitPattern& split, TrainingUnit unit) {
  Words words;
  for (const std::string& document : documents) {
    for (size_t at = 0; at < document.size();) {
      const size_t line_end = std::min(document.find('\n', at), document.size() - 1) + 1;
      const size_t end = unit == TrainingUnit::line ? line_end : document.size();
      std::vector<std::string_view> pieces;
      split.split(std::string_view(document).substr(at, end - at), pieces);
      for (const std::string_view piece : pieces) ++words[std::string(piece)];
      at = end;
    }
  }
  return words;
}

class TrainTokenizer : public testing::Test {
 protected:
  Words counted(const std::string& split, TrainingUnit unit, const std::string& separator = "",
                const std::string& column = "text") {
    const std::vector<InputFile> files = find_input_files(paths_, {separator, column});
    const SourceScan scan = scan_sources(files, *alone_, nullptr);
    WordCounts counts;
    count_words(files, scan, *SplitPattern::find_name(split), unit, *alone_, nullptr, counts);
    Words words;
    counts.for_each([&](std::string_view word, uint64_t count) { words.emplace(word, count); });
    return words;
  }
  TrainedTokenizer train(const TokenizerTraining& training) {
    const std::vector<InputFile> files = find_input_files(paths_, {});
    return train_tokenizer(files, scan_sources(files, *alone_, nullptr), training, *alone_, nullptr);
  }

  Folder folder_;
  std::unique_ptr<Communicator> alone_ = make_local_communicator();
  std::vector<std::string> paths_;
};

/// Several threads read files in pieces; the cuts do not change the result.
TEST_F(TrainTokenizer, CountsTheWordsOfTheWholeText) {
  const std::vector<std::string> documents = {some_text(1, 200'000), some_text(2, 3), some_text(3, 60, 20),
                                              std::string(900'000, '\n') + "end", some_text(4, 1) + "no line end"};
  for (size_t d = 0; d < documents.size(); ++d) {
    paths_.push_back(folder_.file("text" + std::to_string(d) + ".txt", documents[d]));
  }
  for (const char* split : {"gpt2", "llama3", "o200k"}) {
    for (const TrainingUnit unit : {TrainingUnit::line, TrainingUnit::document}) {
      const Words found = counted(split, unit);
      EXPECT_TRUE(found == expected_words(documents, *SplitPattern::find_name(split), unit)) << split;
      const TrainingUnit other = unit == TrainingUnit::line ? TrainingUnit::document : TrainingUnit::line;
      EXPECT_FALSE(found == expected_words(documents, *SplitPattern::find_name(split), other)) << split;
    }
  }
}

/// Rows are documents: their words are those of files with the same texts.
TEST_F(TrainTokenizer, RowsAreCountedAsDocuments) {
  std::vector<std::string> documents;
  std::string rows;
  for (uint64_t d = 0; d < 400; ++d) {
    documents.push_back(some_text(d + 1, d == 7 ? 20'000 : 20));
    rows += nlohmann::json{{"story", documents.back()}, {"text", 1}}.dump() + (d % 9 == 0 ? "\n\n" : "\n");
  }
  paths_ = {folder_.file("a.jsonl", rows)};
  for (const TrainingUnit unit : {TrainingUnit::line, TrainingUnit::document}) {
    const Words expected = expected_words(documents, *SplitPattern::find_name("llama3"), unit);
    EXPECT_TRUE(counted("llama3", unit, "", "story") == expected);
    documents.pop_back();
    EXPECT_FALSE(expected_words(documents, *SplitPattern::find_name("llama3"), unit) == expected);
    documents.push_back(some_text(400, 20));
  }
}

TEST_F(TrainTokenizer, SeparatorsAreNotCounted) {
  paths_ = {folder_.file("a.txt", "one two<|end|>two<|end|><|end|>two  <|end|>")};
  const Words expected = {{"one", 1}, {" two", 1}, {"two", 2}, {"  ", 1}};
  EXPECT_EQ(counted("gpt2", TrainingUnit::document, "<|end|>"), expected);
  EXPECT_EQ(counted("gpt2", TrainingUnit::line, "<|end|>"), expected);
}

TEST_F(TrainTokenizer, GivesTheFiles) {
  paths_ = {folder_.file("a.txt", "low low low lower lowest newest\n")};
  TokenizerTraining training;
  training.vocabulary_size = 262;
  training.special_tokens = {"<|endoftext|>", "<|pad|>"};
  const TrainedTokenizer trained = train(training);
  EXPECT_EQ(trained.tokens, 262);
  EXPECT_EQ(trained.merges, 4);
  EXPECT_EQ(trained.words, 7);
  EXPECT_EQ(trained.distinct_words, 6);
  const auto json = nlohmann::json::parse(trained.tokenizer_json);
  EXPECT_EQ(json.at("model").at("merges").dump(), "[[\"l\",\"o\"],[\"lo\",\"w\"],[\"\u0120\",\"low\"],[\"e\",\"s\"]]");
  EXPECT_EQ(nlohmann::json::parse(trained.tokenizer_config_json).at("eos_token"), "<|endoftext|>");
}

TEST_F(TrainTokenizer, RefusesWhatItCannotUse) {
  paths_ = {folder_.file("a.txt", "text")};
  TokenizerTraining training;
  training.split = "lama3";
  EXPECT_THAT(refusal([&] { train(training); }), AllOf(HasSubstr("64 "), HasSubstr("did you mean llama3?")));
  training = {};
  training.eos = "<eos>";
  EXPECT_THAT(refusal([&] { train(training); }), HasSubstr("<eos> is not one of the special tokens"));
  training = {};
  training.vocabulary_size = 256;
  EXPECT_THAT(refusal([&] { train(training); }), HasSubstr("at least 257"));
  paths_ = {folder_.file("b.jsonl", "{\"input_ids\":[1,2]}\n")};
  EXPECT_THAT(refusal([&] { train({}); }), AllOf(HasSubstr("65 "), HasSubstr("b.jsonl")));
}

}  // namespace
}  // namespace llmtrain
