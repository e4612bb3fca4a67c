// Tokenizers trained by llmtrain, on several ranks, and by llmtool.

#include <gtest/gtest.h>

#include "decks/program.hpp"

namespace llmtrain {
namespace {

using test::llmtool;
using test::read_file;

class TrainedTokenizer : public testing::Test {
 protected:
  TrainedTokenizer() {
    EXPECT_EQ(llmtool({"corpus", "stories", "--bytes", "400000", "--seed", "5", "--output", text()}).exit_code, 0);
    test::write_file(folder_ / "tokenizer.ini", "[run]\ntask = tokenizer\noutput = " + folder_.text() +
                                                    "/runs\n[data]\ntrain = " + text() + "\nvocab_size = 500\n");
    test::write_file(folder_ / "train.ini",
                     "[run]\nmax_steps = 3\noutput = " + folder_.text() +
                         "/runs\n[model]\nd_model = 32\nn_layers = 1\nn_heads = 2\n[data]\ntrain = " + text() +
                         "\ntokenizer = bpe\nvocab_size = 500\n" +
                         "[batch]\nsequence_length = 16\nmicro = 2\nglobal = 8\n");
  }
  std::string text() const { return folder_.text() + "/text.txt"; }
  test::Outcome run(const std::string& deck, int ranks, std::vector<std::string> more = {}) {
    more.insert(more.begin(), (folder_ / deck).string());
    more.push_back("run.name=" + name(ranks));
    more.push_back("data.cache=" + folder_.text() + "/cache" + std::to_string(ranks));
    return test::llmtrain({.ranks = ranks, .arguments = more});
  }
  static std::string name(int ranks) { return "np" + std::to_string(ranks); }
  std::filesystem::path result(int ranks, const char* file) const { return folder_ / "runs" / name(ranks) / file; }

  test::TemporaryFolder folder_;
};

TEST_F(TrainedTokenizer, OfATaskIsTheOneOfLlmtoolOnAnyNumberOfRanks) {
  const std::string made = (folder_ / "made").string();
  const std::vector<std::string> tool = {"tokenizer", "train", "--input", text(), "--vocab-size", "500", "--output"};
  std::vector<std::string> arguments = tool;
  arguments.push_back(made);
  ASSERT_EQ(llmtool(arguments).exit_code, 0);
  for (const int ranks : {1, 2, 3}) {
    const test::Outcome outcome = run("tokenizer.ini", ranks);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_NE(outcome.output.find("500 tokens trained"), std::string::npos) << outcome.output;
    for (const char* file : {"tokenizer.json", "tokenizer_config.json"}) {
      EXPECT_TRUE(read_file(result(ranks, file)) == read_file(made + "/" + file)) << ranks << " " << file;
    }
  }
  // Repeated: finished. A different size: a different deck, a different tokenizer.
  EXPECT_NE(run("tokenizer.ini", 1).output.find("is finished. Give run.name=..."), std::string::npos);
  EXPECT_EQ(run("tokenizer.ini", 1, {"data.vocab_size=400"}).exit_code, 73);
  ASSERT_EQ(run("tokenizer.ini", 1, {"data.vocab_size=400", "run.overwrite=true"}).exit_code, 0);
  EXPECT_FALSE(read_file(result(1, "tokenizer.json")) == read_file(made + "/tokenizer.json"));
}

TEST_F(TrainedTokenizer, OfARunGivesTheSameLedgerOnAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3}) {
    const test::Outcome outcome = run("train.ini", ranks);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_TRUE(read_file(result(ranks, "ledger.jsonl")) == read_file(result(1, "ledger.jsonl"))) << ranks;
  }
  const std::string first = read_file(result(1, "ledger.jsonl"));
  ASSERT_EQ(run("train.ini", 1, {"tokenizer.split=llama3", "run.overwrite=true"}).exit_code, 0);
  EXPECT_FALSE(read_file(result(1, "ledger.jsonl")) == first);
}

/// The resolved deck names no end-of-text token, and is still a valid deck.
TEST_F(TrainedTokenizer, TrainsARunThatIsFoundFinished) {
  ASSERT_EQ(run("tokenizer.ini", 1).exit_code, 0);
  const std::string tokenizer = "data.tokenizer=" + result(1, "tokenizer.json").string();
  for (const bool again : {false, true}) {
    const test::Outcome outcome = run("train.ini", 2, {tokenizer});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_EQ(outcome.output.find("this run is finished") != std::string::npos, again) << outcome.output;
  }
}

TEST_F(TrainedTokenizer, KeysThatCannotBeAreRefused) {
  const auto refused = [&](const std::vector<std::string>& keys, const std::string& why) {
    const test::Outcome outcome = run("tokenizer.ini", 1, keys);
    EXPECT_EQ(outcome.exit_code, 78);
    EXPECT_NE(outcome.output.find(why), std::string::npos) << outcome.output;
  };
  refused({"tokenizer.special_tokens=<a>,<a>"}, "<a> is repeated");
  refused({"data.vocab_size=258", "tokenizer.special_tokens=<a>,<b>"}, "258 is too small");
  refused({"data.tokenizer=char"}, "only trains bpe");
  EXPECT_EQ(run("tokenizer.ini", 1, {"data.vocab_size=259", "tokenizer.special_tokens=<a>,<b>"}).exit_code, 0);
}

}  // namespace
}  // namespace llmtrain
