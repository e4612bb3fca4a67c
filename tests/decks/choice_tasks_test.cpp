// evaluation.tasks: scores and log-likelihoods agree with lm-evaluation-harness (tests/reference/tasks), and have the
// same bits for any batch size, order of rows, packing and number of ranks. The small trained model and the published
// rows are in the folder that LLMTRAIN_DATA names.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
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

const std::string reference = (source_folder() / "tests/reference/tasks").string() + "/";

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string joined_lines(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

class ChoiceTasks : public testing::Test {
 protected:
  void SetUp() override {
    const char* const data = std::getenv("LLMTRAIN_DATA");
    if (data == nullptr) GTEST_SKIP() << "LLMTRAIN_DATA names no folder of data";
    data_folder = data;
    const std::string stories = data_folder + "/weights/stories260K/";
    const Outcome imported = llmtool({"import", stories + "stories260K.bin", "--tokenizer", stories + "tok512.model",
                                      "--output", (folder / "model").string()});
    ASSERT_EQ(imported.exit_code, 0) << imported.output;
    write_file(folder / "deck.ini", "[run]\ntask = evaluate\noutput = " + (folder / "runs").string() +
                                        "\n[model]\npath = " + (folder / "model").string() +
                                        "\n[batch]\nsequence_length = 512\nmicro = 2\n[precision]\ncompute = fp32\n"
                                        "[evaluation]\nlog_samples = true\n");
  }

  void evaluate(std::vector<std::string> overrides, int ranks = 1, int code = 0) {
    name = std::to_string(++runs);
    overrides.insert(overrides.begin(), {(folder / "deck.ini").string(), "run.name=" + name});
    outcome = llmtrain({ranks, 1, overrides});
    ASSERT_EQ(outcome.exit_code, code) << outcome.output;
  }
  std::string file(const std::string& of_run) const { return read_file(folder / ("runs/" + name + "/" + of_run)); }
  /// The first rows of a published file.
  std::string first_rows(const std::string& file, const std::string& name_here, int64_t rows) const {
    std::vector<std::string> lines = lines_of(read_file(data_folder + "/eval/" + file));
    lines.resize(static_cast<size_t>(rows));
    write_file(folder / name_here, joined_lines(lines));
    return (folder / name_here).string();
  }

  TemporaryFolder folder;
  std::string data_folder;
  Outcome outcome;
  std::string name;
  int runs = 0;
};

TEST_F(ChoiceTasks, AgreeWithTheHarness) {
  const json goldens = json::parse(read_file(reference + "goldens.json"));
  const int64_t rows = goldens["rows"];
  std::string tasks = "evaluation.tasks=" + first_rows("hellaswag_val.jsonl", "hellaswag_val.jsonl", rows) + "," +
                      first_rows("piqa.jsonl", "piqa_val.jsonl", rows) + "," +
                      first_rows("arc_easy.jsonl", "arc_easy.jsonl", rows) + "," +
                      first_rows("lambada_openai.jsonl", "lambada_openai.jsonl", rows);
  for (const char* own :
       {"hellaswag.jsonl", "piqa.jsonl", "arc.jsonl", "winogrande.jsonl", "lambada.jsonl", "first_aid_test.csv"})
    tasks += "," + reference + own;
  evaluate({tasks, "batch.micro=8"});
  const json report = json::parse(file("evaluation.json"));
  std::map<std::string, std::vector<json>> of_task;
  for (const std::string& line : lines_of(file("evaluation_rows.jsonl"))) {
    const json row = json::parse(line);
    of_task[row["task"]].push_back(row);
  }
  for (const auto& [task, golden] : goldens["tasks"].items()) {
    SCOPED_TRACE(task);
    for (const auto& [score, value] : golden["scores"].items()) {
      const double expected = value.get<double>();
      EXPECT_NEAR(report["tasks"][task][score].get<double>(), expected, score == "perplexity" ? 1e-4 * expected : 1e-9)
          << score;
    }
    ASSERT_EQ(of_task[task].size(), golden["choices"].size());
    for (size_t row = 0; row < of_task[task].size(); ++row) {
      const json& choices = of_task[task][row]["choices"];
      ASSERT_EQ(choices.size(), golden["choices"][row].size());
      for (size_t c = 0; c < choices.size(); ++c) {
        EXPECT_NEAR(choices[c]["sum"].get<double>(), golden["choices"][row][c][0].get<double>(), 2e-4);
        EXPECT_EQ(choices[c]["greedy"], golden["choices"][row][c][1]);
      }
    }
  }
  EXPECT_GE(goldens["tasks"].size(), 10U);
}

TEST_F(ChoiceTasks, HaveTheSameBitsForAnyBatchOrderAndNumberOfRanks) {
  const std::string rows = first_rows("hellaswag_val.jsonl", "rows.jsonl", 6);
  evaluate({"evaluation.tasks=" + rows, "batch.micro=1"});
  const std::string report = file("evaluation.json"), samples = file("evaluation_rows.jsonl"),
                    ledger = file("ledger.jsonl");
  EXPECT_THAT(ledger, HasSubstr("\"validation_loss\":null,\"metrics\":{\"rows/acc\":\"0x"));
  for (const auto& [ranks, micro] : {std::pair(1, 5), {2, 1}, {3, 2}}) {
    evaluate({"evaluation.tasks=" + rows, "batch.micro=" + std::to_string(micro),
              "parallel.zero=" + std::to_string(ranks == 3 ? 3 : 0)},
             ranks);
    EXPECT_EQ(file("evaluation.json"), report);
    EXPECT_EQ(file("evaluation_rows.jsonl"), samples);
    EXPECT_EQ(file("ledger.jsonl"), ledger);
  }
  std::vector<std::string> lines = lines_of(read_file(rows));
  std::ranges::reverse(lines);
  write_file(rows, joined_lines(lines));
  evaluate({"evaluation.tasks=" + rows, "batch.micro=3"});
  EXPECT_EQ(json::parse(file("evaluation.json")), json::parse(report));
  std::vector<std::string> reversed = lines_of(file("evaluation_rows.jsonl")), forward = lines_of(samples);
  std::ranges::reverse(reversed);
  ASSERT_EQ(reversed.size(), forward.size());
  for (size_t i = 0; i < forward.size(); ++i) {
    EXPECT_EQ(json::parse(reversed[i])["choices"], json::parse(forward[i])["choices"]) << "bits of each choice";
  }
  evaluate({"evaluation.tasks=" + rows, "batch.sequence_length=60"});
  EXPECT_NE(file("evaluation_rows.jsonl"), samples) << "control: shorter contexts";
  EXPECT_THAT(outcome.output, HasSubstr("without the beginning of the context"));
}

TEST_F(ChoiceTasks, AreRefusedWithFileAndLine) {
  write_file(folder / "bad.jsonl", "{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 7}\n");
  evaluate({"evaluation.tasks=" + (folder / "bad.jsonl").string()}, 2, 65);
  EXPECT_THAT(outcome.output, HasSubstr("bad.jsonl:1: answer: 7 is not the number of a choice"));
  evaluate({"evaluation.tasks=" + (folder / "none.jsonl").string()}, 2, 66);
  evaluate({}, 1, 78);
  EXPECT_THAT(outcome.output, HasSubstr("or evaluation.tasks"));
}

}  // namespace
}  // namespace llmtrain::test
