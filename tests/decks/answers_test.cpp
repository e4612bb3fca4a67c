// evaluation.metrics: the model's greedy answers to validation prompts and their scores do not depend on ranks, batches
// or the ZeRO stage, equal `llmtool score` of the same texts, and may choose the best evaluation of a run.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/program.hpp"

namespace llmtrain::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

/// The context is longer than every row: answers may be, too.
class Answers : public testing::Test {
 protected:
  Outcome run(const std::string& deck, const std::string& name, std::vector<std::string> overrides, int ranks = 1) {
    const std::string sft = (source_folder() / "tests/reference/sft").string();
    const bool validates = std::ranges::any_of(
        overrides, [](const std::string& setting) { return setting.starts_with("data.validation"); });
    if (!validates) overrides.emplace_back("data.validation_fraction=0.5");
    overrides.insert(overrides.begin(),
                     {(source_folder() / "inputs" / deck).string(), "run.name=" + name, "run.output=" + folder_path(),
                      "model.path=" + sft + "/model", "data.train=" + sft + "/completions.jsonl",
                      "batch.sequence_length=256", "precision.compute=fp32"});
    return llmtrain({ranks, 1, overrides});
  }
  std::string folder_path() const { return (folder / "runs").string(); }
  std::string file(const std::string& name, const std::string& of_run) const {
    return read_file(folder / ("runs/" + name + "/" + of_run));
  }
  /// A file of a task.
  std::string choices() const {
    write_file(folder / "choices.jsonl", R"({"context": "gold", "choices": ["sea", "bird"], "answer": 0})");
    return (folder / "choices.jsonl").string();
  }
  TemporaryFolder folder;
};

const std::string bert_score = (source_folder() / "tests/reference/bert_score").string() + "/";

TEST_F(Answers, AreComparedByTheEmbeddingsOfADecoder) {
  const std::string six = "evaluation.max_new_tokens=6";
  const Outcome one =
      run("evaluate.ini", "one",
          {"evaluation.metrics=bertscore:" + bert_score + "llama", six, "evaluation.tasks=" + choices()}, 2);
  ASSERT_EQ(one.exit_code, 0) << one.output;
  EXPECT_THAT(one.output, HasSubstr("choices: 1 row, 2 choices"));
  EXPECT_THAT(one.output, HasSubstr("bertscore  decoder llama|layer:2|idf:no|rescaled:no|nrefs:1"));
  const double score = json::parse(file("one", "evaluation.json"))["metrics"]["bertscore"];
  write_file(folder / "rows.jsonl", file("one", "generations.jsonl"));
  const std::string path = (folder / "rows.jsonl").string();
  const auto tool_score = [&](const std::string& model) {
    const Outcome scored = llmtool({"score", "--metric", "bertscore", "--model", bert_score + model, "--hypotheses",
                                    path, "--references", path, "--json"});
    EXPECT_EQ(scored.exit_code, 0) << scored.output;
    return json::parse(scored.output)["score"].get<double>();
  };
  EXPECT_DOUBLE_EQ(tool_score("llama"), score);
  EXPECT_NE(tool_score("gpt2"), score) << "control";
}

TEST_F(Answers, FindWhatIsMissingBeforeTheWork) {
  const std::vector<std::string> rules = {"run.max_steps=2", "evaluation.metrics=bertscore:nowhere"};
  const Outcome late = run("sft.ini", "late", rules, 2);
  EXPECT_EQ(late.exit_code, 66) << late.output;
  EXPECT_THAT(late.output, HasSubstr("nowhere"));
  EXPECT_FALSE(std::filesystem::exists(folder / "runs/late/ledger.jsonl")) << "before the first step";
  EXPECT_EQ(run("sft.ini", "checked", {rules[0], rules[1], "--check"}).exit_code, 66);
  write_file(folder / "rows.jsonl", "{\"prompt\": \"gold\", \"completion\": \" sea\"}\n{\"prompt\": 7}\n");
  const std::string validation = "data.validation=" + (folder / "rows.jsonl").string();
  const Outcome row = run("sft.ini", "row", {rules[0], validation, "--check"});
  EXPECT_EQ(row.exit_code, 65) << row.output;
  EXPECT_THAT(row.output, HasSubstr("rows.jsonl:2"));
  EXPECT_EQ(run("sft.ini", "control", {rules[0], "--check"}).exit_code, 0);
}

TEST_F(Answers, HavePromptsOfOneTokenAndAreWrittenInTraining) {
  std::string rows;
  for (int i = 0; i < 6; ++i) rows += "{\"prompt\": \"g\", \"completion\": \" sea\"}\n";
  write_file(folder / "rows.jsonl", rows);
  const Outcome outcome =
      run("sft.ini", "short",
          {"run.max_steps=2", "batch.global=2", "batch.micro=1", "data.validation=" + (folder / "rows.jsonl").string(),
           "evaluation.metrics=chrf", "evaluation.max_new_tokens=4", "evaluation.tasks=" + choices(),
           "evaluation.log_samples=true"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(file("short", "generations.jsonl"), HasSubstr("\"reference\":\" sea"));
  EXPECT_THAT(file("short", "evaluation_rows.jsonl"), HasSubstr("\"task\":\"choices\""));
}

TEST_F(Answers, AreTheSameForAnyBatchAndNumberOfRanks) {
  const std::string metrics = "evaluation.metrics=chrf,token_f1,rougeL", six = "evaluation.max_new_tokens=6";
  ASSERT_EQ(run("evaluate.ini", "one", {metrics, six}).exit_code, 0);
  const Outcome three =
      run("evaluate.ini", "three",
          {metrics, six, "batch.micro=2", "batch.global=2", "evaluation.batches=0", "parallel.zero=3"}, 3);
  ASSERT_EQ(three.exit_code, 0) << three.output;
  for (const char* name : {"evaluation.json", "generations.jsonl", "ledger.jsonl"}) {
    EXPECT_EQ(file("three", name), file("one", name)) << name;
  }
  ASSERT_EQ(run("evaluate.ini", "longer", {metrics, "evaluation.max_new_tokens=9"}).exit_code, 0);
  EXPECT_NE(file("longer", "generations.jsonl"), file("one", "generations.jsonl")) << "control";

  const json report = json::parse(file("one", "evaluation.json"));
  std::string hypotheses, references;
  int64_t rows = 0;
  std::istringstream lines(file("one", "generations.jsonl"));
  for (std::string line; std::getline(lines, line); ++rows) hypotheses += line + "\n";
  EXPECT_EQ(report["answers"], rows);
  write_file(folder / "rows.jsonl", hypotheses);
  const std::string path = (folder / "rows.jsonl").string();
  const Outcome scored =
      llmtool({"score", "--metric", "chrf,token_f1,rougeL", "--hypotheses", path, "--references", path, "--json"});
  ASSERT_EQ(scored.exit_code, 0) << scored.output;
  std::istringstream scores(scored.output);
  for (std::string line; std::getline(scores, line);) {
    const json score = json::parse(line);
    EXPECT_DOUBLE_EQ(report["metrics"][score["metric"]].get<double>(), score["score"].get<double>());
  }
  EXPECT_GT(report["metrics"]["chrf"], 0) << "control: the texts are not empty";
}

TEST_F(Answers, ChooseTheBestEvaluation) {
  const std::vector<std::string> rules = {"run.max_steps=4",
                                          "batch.global=4",
                                          "batch.micro=2",
                                          "evaluation.every_steps=2",
                                          "evaluation.batches=2",
                                          "evaluation.metrics=chrf,rouge",
                                          "evaluation.max_new_tokens=6",
                                          "evaluation.load_best_at_end=true",
                                          "checkpoint.best_metric=validation/chrf"};
  const Outcome one = run("sft.ini", "one", rules);
  ASSERT_EQ(one.exit_code, 0) << one.output;
  ASSERT_EQ(run("sft.ini", "two", rules, 2).exit_code, 0);
  EXPECT_EQ(file("two", "ledger.jsonl"), file("one", "ledger.jsonl"));
  double highest = -1;
  std::istringstream lines(file("one", "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const json record = json::parse(line);
    if (!record.contains("validation_chrf")) continue;
    EXPECT_EQ(record["best"], record["validation_chrf"] > highest);
    highest = std::max(highest, record["validation_chrf"].get<double>());
  }
  EXPECT_GE(highest, 0);
  const Outcome unknown = run("sft.ini", "unknown", {"run.max_steps=4", "checkpoint.best_metric=validation/bleu"});
  EXPECT_EQ(unknown.exit_code, 78);
  EXPECT_THAT(unknown.output, HasSubstr("there are validation/loss, validation/token_accuracy"));
  const Outcome error_of_score =
      run("sft.ini", "stderr",
          {"run.max_steps=4", "data.validation_fraction=0.5", "evaluation.tasks=" + choices(),
           "checkpoint.best_metric=validation/choices/acc_stderr"});
  EXPECT_EQ(error_of_score.exit_code, 78);
  EXPECT_THAT(error_of_score.output, HasSubstr("did you mean validation/choices/acc"));
  const Outcome misspelt = run("evaluate.ini", "misspelt", {"evaluation.metrics=rogue"});
  EXPECT_EQ(misspelt.exit_code, 78);
  EXPECT_THAT(misspelt.output, HasSubstr("did you mean rouge?"));
}

}  // namespace
}  // namespace llmtrain::test
