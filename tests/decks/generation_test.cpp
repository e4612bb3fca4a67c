// run.task = generate: rows in the order of the prompts, the same bytes for any number of ranks, and the tokens of
// Transformers' generate() (tests/reference/generation).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/program.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string reference = (source_folder() / "tests/reference").string() + "/";

class Generation : public ::testing::Test {
 protected:
  Generation() {
    std::string rows;
    const std::vector<std::string> texts = {"The cat", "A dog and a bird", "One", "She saw the", "In the", "He", "Two"};
    for (size_t i = 0; i < texts.size(); ++i) rows += json({{"number", i}, {"prompt", texts[i]}}).dump() + "\n\n";
    rows += json({{"number", 7}, {"messages", {{{"role", "user"}, {"content", "Who are you?"}}}}}).dump() + "\n";
    write_file(folder / "prompts.jsonl", rows);
    write_file(folder / "deck.ini",
               "[run]\ntask = generate\noutput = " + (folder / "runs").string() + "\n[model]\npath = " + reference +
                   "sft/model\n[generate]\nprompts = " + (folder / "prompts.jsonl").string() +
                   "\nmax_new_tokens = 12\nsamples = 2\nstop = e, zz\nids = true\nlogprobs = true\n"
                   "[batch]\nsequence_length = 40\nmicro = 3\n[precision]\ncompute = fp32\n");
  }

  /// Starts a new run, which must end with `code`.
  void generate(std::vector<std::string> overrides, int ranks = 1, int code = 0) {
    name = std::to_string(++runs);
    again(std::move(overrides), ranks, code);
  }
  /// Starts the last run again.
  void again(std::vector<std::string> overrides, int ranks = 1, int code = 0) {
    overrides.insert(overrides.begin(), {(folder / "deck.ini").string(), "run.name=" + name});
    outcome = llmtrain({ranks, 1, overrides});
    ASSERT_EQ(outcome.exit_code, code) << outcome.output;
  }
  fs::path file(const std::string& of_run = "generations.jsonl") const { return folder / "runs" / name / of_run; }
  std::string text() const { return read_file(file()); }
  std::vector<json> rows() const {
    std::vector<json> all;
    std::istringstream lines(text());
    for (std::string line; std::getline(lines, line);) all.push_back(json::parse(line));
    return all;
  }

  TemporaryFolder folder;
  Outcome outcome;
  std::string name;
  int runs = 0;
};

TEST_F(Generation, HasTheSameBytesForAnyRanksStagesAndCompany) {
  generate({});
  const std::string bytes = text();
  generate({"parallel.zero=0", "batch.micro=1"}, 2);
  EXPECT_EQ(text(), bytes);
  generate({"parallel.zero=3", "batch.micro=16"}, 3);
  EXPECT_EQ(text(), bytes);
  generate({"run.seed=43"});
  EXPECT_NE(text(), bytes) << "control";
}

// The longest prompt decides where the deck does not: the rows are the same, and so is a second start.
TEST_F(Generation, NeedsNoSequenceLength) {
  generate({});
  const std::string bytes = text();
  std::string deck = read_file(folder / "deck.ini");
  const std::string line = "sequence_length = 40\n";
  write_file(folder / "deck.ini", deck.erase(deck.find(line), line.size()));
  generate({}, 2);
  EXPECT_EQ(text(), bytes);
  EXPECT_THAT(outcome.output, HasSubstr("\nlength     "));
  EXPECT_THAT(outcome.output, HasSubstr("and generate.max_new_tokens; the limit of model.path is 512 (config.json)"));
  const std::string resolved = read_file(file("deck.ini"));
  EXPECT_THAT(resolved, HasSubstr("automatic: the longest prompt, "));
  EXPECT_THAT(resolved, Not(HasSubstr("sequence_length = 512"))) << "less than the model's limit";
  again({});
  EXPECT_THAT(outcome.output, HasSubstr("finished"));
  generate({"--check"});
  EXPECT_THAT(outcome.output, HasSubstr("automatic: the longest prompt, "));
  generate({"--estimate"});
}

TEST_F(Generation, WritesARowForEachSampleWithTheColumnsOfItsPrompt) {
  generate({});
  const std::vector<json> all = rows();
  ASSERT_EQ(all.size(), 16U);
  int ended = 0, different = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]["number"], i / 2);
    EXPECT_EQ(all[i]["sample"], i % 2);
    EXPECT_EQ(all[i]["text"].get<std::string>().find('e'), std::string::npos);
    EXPECT_EQ(all[i]["ids"].size(), all[i]["logprobs"].size());
    for (const json& value : all[i]["logprobs"]) EXPECT_LT(value.get<double>(), 0);
    EXPECT_TRUE(all[i]["end"] != "length" || all[i]["ids"].size() == 12U);
    ended += all[i]["end"] == "stop" ? 1 : 0;
    different += i % 2 == 1 && all[i]["ids"] != all[i - 1]["ids"] ? 1 : 0;
  }
  EXPECT_GT(ended, 0);
  EXPECT_GT(different, 4) << "samples of a prompt are drawn apart";
  generate({"generate.samples=1"});
  const std::vector<json> first = rows();
  for (size_t i = 0; i < first.size(); ++i) EXPECT_EQ(first[i]["ids"], all[2 * i]["ids"]) << "sample 0 is the same";
  EXPECT_FALSE(first[0].contains("sample"));
}

TEST_F(Generation, GoesOnAfterTheLastCompleteRow) {
  generate({});
  const std::string bytes = text();
  const size_t third = bytes.find("\n", bytes.find("\n", bytes.find("\n") + 1) + 1) + 1;
  const auto cut = [&](size_t length) {
    fs::remove(file("finished.json"));
    write_file(file(), bytes.substr(0, length));
  };
  cut(third + 17);
  again({}, 2);
  EXPECT_EQ(text(), bytes);
  EXPECT_THAT(outcome.output, HasSubstr("3 rows already written"));
  EXPECT_THAT(outcome.output, HasSubstr("13 rows, "));
  again({});
  EXPECT_THAT(outcome.output, HasSubstr("this run is finished"));
  cut(third);
  again({"generate.temperature=0.5"}, 1, 73);
  EXPECT_THAT(outcome.output, HasSubstr("generate.temperature: 1 there, 0.5 here"));
  write_file(folder / "prompts.jsonl", "{\"prompt\": \"another\"}\n{\"prompt\": \"text\"}\n");
  again({}, 2, 73);
  EXPECT_THAT(outcome.output, HasSubstr("the prompts have changed"));
}

TEST_F(Generation, RefusesToGoOnAfterRowsThatAreNotItsOwn) {
  const fs::path model = folder / "model";
  fs::copy(reference + "sft/model", model);
  const std::vector<std::string> deck = {"model.path=" + model.string(), "generate.samples=1"};
  generate(deck);
  const std::string bytes = text();
  const size_t second = bytes.find('\n') + 1;
  const auto leave = [&](const std::string& rows) {
    fs::remove(file("finished.json"));
    write_file(file(), rows);
  };
  std::string edited = bytes;
  edited.replace(edited.find("\"text\":\""), 8, "\"text\":\"other");
  leave(edited);
  again(deck, 2, 73);
  EXPECT_THAT(outcome.output, HasSubstr("line 1 has changed since it was written"));
  leave(bytes.substr(second));
  again(deck, 1, 73);
  EXPECT_THAT(outcome.output, HasSubstr("line 1 has changed"));
  leave(bytes + "{}\n");
  again(deck, 1, 73);
  EXPECT_THAT(outcome.output, HasSubstr("line 9 is not of this run"));
  leave(bytes.substr(0, second));
  const std::string prompts = read_file(folder / "prompts.jsonl");
  write_file(folder / "prompts.jsonl", prompts.substr(0, prompts.rfind("Who are you")) + "What" +
                                           prompts.substr(prompts.rfind("Who are you") + 3));
  again(deck, 1, 73);
  EXPECT_THAT(outcome.output, HasSubstr("the prompts have changed")) << "of rows that are not written yet";
  write_file(folder / "prompts.jsonl", prompts);
  std::string weights = read_file(model / "model.safetensors");
  weights[weights.size() - 1] ^= 1;
  write_file(model / "model.safetensors", weights);
  again(deck, 1, 73);
  EXPECT_THAT(outcome.output, HasSubstr("the model, its tokenizer or its chat template have changed"));
  weights[weights.size() - 1] ^= 1;
  write_file(model / "model.safetensors", weights);
  again(deck, 2);
  EXPECT_EQ(text(), bytes) << "control: nothing has changed";
  EXPECT_THAT(outcome.output, HasSubstr("1 row already written"));
}

TEST_F(Generation, StopsWhenAskedAndGoesOn) {
  generate({});
  const std::string bytes = text();
  fs::create_directories(folder / "runs/2");
  write_file(folder / "runs/2/STOP", "");
  generate({}, 2, 75);
  again({});
  EXPECT_EQ(text(), bytes);
}

TEST_F(Generation, CountsOrRefusesLongPrompts) {
  generate({"batch.sequence_length=14", "generate.samples=1", "generate.temperature=0"});
  EXPECT_THAT(outcome.output, HasSubstr("prompts are longer than 2 tokens and lost their begin"));
  generate({"batch.sequence_length=14", "generate.overflow=error"}, 2, 65);
  EXPECT_THAT(outcome.output, HasSubstr("prompts.jsonl:1: the prompt has "));
  EXPECT_FALSE(fs::exists(file()));
}

TEST_F(Generation, RefusesWhatIsNoPrompt) {
  write_file(folder / "prompts.jsonl", "{\"prompt\": \"a\"}\n{\"text\": \"b\"}\n");
  generate({}, 2, 65);
  EXPECT_THAT(outcome.output, HasSubstr("prompts.jsonl:2: "));
  generate({"generate.prompts=missing.jsonl"}, 1, 66);
  EXPECT_THAT(outcome.output, HasSubstr("generate.prompts: missing.jsonl"));
  generate({"generate.beams=2", "generate.samples=1", "generate.logprobs=false", "batch.micro=1"}, 1, 78);
  EXPECT_THAT(outcome.output, HasSubstr("generate.beams: 2 beams are more than"));
}

TEST_F(Generation, ChecksAndEstimatesWithoutGenerating) {
  generate({"--check"});
  EXPECT_THAT(outcome.output, HasSubstr("max_new_tokens = 12"));
  generate({"--estimate", "--ranks", "64"});
  EXPECT_THAT(outcome.output, HasSubstr("kv"));
  generate({"--check", "batch.sequence_length=14"});
  EXPECT_THAT(outcome.output, HasSubstr("prompts longer than batch.sequence_length allows"));
  generate({"--check", "batch.sequence_length=14", "generate.overflow=error"}, 1, 65);
  EXPECT_THAT(outcome.output, HasSubstr("prompts.jsonl:1: the prompt has "));
  write_file(folder / "prompts.jsonl", read_file(folder / "prompts.jsonl") + "{\"text\": \"b\"}\n");
  generate({"--check"}, 2, 65);
  EXPECT_THAT(outcome.output, HasSubstr("prompts.jsonl:16: ")) << "the last row is read, too";
  EXPECT_FALSE(fs::exists(folder / "runs"));
}

TEST_F(Generation, ReadsLinesOfText) {
  write_file(folder / "lines.txt", "The cat\n\nOne\r\n");
  generate({"generate.prompts=" + (folder / "lines.txt").string(), "generate.samples=1"});
  const std::vector<json> all = rows();
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[1]["prompt"], "One");
  const json first = all[0]["ids"];
  generate({"generate.samples=1"});
  EXPECT_EQ(rows()[0]["ids"], first) << "the same prompt in a row of JSON";
}

TEST_F(Generation, HasTheTokensOfTransformers) {
  const char* const data = std::getenv("LLMTRAIN_DATA");
  if (data == nullptr) GTEST_SKIP() << "LLMTRAIN_DATA names no folder of data";
  const std::string stories = std::string(data) + "/weights/stories260K/", model = (folder / "model").string();
  ASSERT_EQ(llmtool({"import", stories + "stories260K.bin", "--tokenizer", stories + "tok512.model", "--output", model})
                .exit_code,
            0);
  const json goldens = json::parse(read_file(reference + "generation/goldens.json"));
  std::string prompts;
  for (const json& prompt : goldens["prompts"]) prompts += json({{"prompt", prompt}}).dump() + "\n";
  write_file(folder / "prompts.jsonl", prompts);
  std::vector<std::string> texts;
  for (const json& golden : goldens["cases"]) {
    SCOPED_TRACE(golden["options"].dump());
    std::vector<std::string> overrides = {"model.path=" + model, "generate.temperature=0",    "generate.logprobs=false",
                                          "generate.stop=",      "batch.sequence_length=100", "batch.micro=7"};
    std::map<std::string, std::string> options = {{"max_new_tokens", "60"}, {"samples", "1"}};
    for (const auto& [key, value] : golden["options"].items()) {
      options[key] = value.is_string() ? value.get<std::string>() : value.dump();
    }
    for (const auto& [key, value] : options) overrides.push_back("generate." + key + "=" + value);
    generate(overrides, runs % 2 + 1);
    const std::vector<json> all = rows();
    size_t row = 0;
    for (const json& prompt : golden["prompts"]) {
      for (size_t s = 0; s < prompt["tokens"].size(); ++s, ++row) {
        EXPECT_EQ(all.at(row)["ids"], prompt["tokens"][s]) << row;
        if (!prompt.contains("scores")) continue;
        const double score = prompt["scores"][s];
        EXPECT_NEAR(all[row]["score"].get<double>(), score, 2e-5 * (1 + std::abs(score))) << row;
      }
    }
    EXPECT_EQ(row, all.size());
    texts.push_back(text());
  }
  for (size_t i = 1; i < 7; ++i) EXPECT_NE(texts[i], texts[0]) << "control: every option changes something";
}

}  // namespace
}  // namespace llmtrain::test
