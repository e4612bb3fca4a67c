// run.task = evaluate compared with the loop of Transformers' guide "Perplexity of fixed-length models"
// (tests/reference/evaluation).

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "decks/program.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;

const std::string reference = (source_folder() / "tests/reference").string() + "/";

class Evaluation : public ::testing::Test {
 protected:
  Evaluation() {
    const nlohmann::json goldens = nlohmann::json::parse(read_file(reference + "evaluation/goldens.json"));
    cases = goldens["cases"];
    write_file(folder / "ids.jsonl", nlohmann::json({{"input_ids", goldens["ids"]}}).dump() + "\n");
    write_file(folder / "deck.ini", "[run]\ntask = evaluate\noutput = " + (folder / "runs").string() +
                                        "\n[model]\npath = " + reference +
                                        "hf/llama\n[data]\nvalidation = " + (folder / "ids.jsonl").string() +
                                        "\n[batch]\nsequence_length = 16\nmicro = 2\n[precision]\ncompute = fp32\n");
  }

  /// Starts a new run, which must end with `code`.
  void evaluate(std::vector<std::string> overrides, int ranks = 1, int code = 0) {
    name = std::to_string(++runs);
    overrides.insert(overrides.begin(), {(folder / "deck.ini").string(), "run.name=" + name});
    outcome = llmtrain({ranks, 1, overrides});
    ASSERT_EQ(outcome.exit_code, code) << outcome.output;
  }
  std::string file(const std::string& of_run) const { return read_file(folder / ("runs/" + name + "/" + of_run)); }

  TemporaryFolder folder;
  nlohmann::json cases;
  Outcome outcome;
  std::string name;
  int runs = 0;
};

TEST_F(Evaluation, AgreesWithTransformersForEveryStride) {
  for (const nlohmann::json& golden : cases) {
    SCOPED_TRACE(golden.dump());
    evaluate({"model.path=" + reference + "hf/" + golden["model"].get<std::string>(),
              "evaluation.stride=" + golden["stride"].dump()});
    const nlohmann::json report = nlohmann::json::parse(file("evaluation.json"));
    EXPECT_EQ(report["tokens"], golden["tokens"]);
    EXPECT_NEAR(report["loss"].get<double>(), golden["loss"].get<double>(), 2e-6);
    EXPECT_NEAR(report["perplexity"].get<double>(), std::exp(golden["loss"].get<double>()), 2e-4);
    EXPECT_DOUBLE_EQ(report["token_accuracy"].get<double>(),
                     golden["correct"].get<double>() / golden["tokens"].get<double>());
    EXPECT_FALSE(report.contains("bits_per_byte")) << "nobody knows the text";
  }
}

TEST_F(Evaluation, IsTheSameForAnyNumberOfRanksAndStage) {
  evaluate({"evaluation.stride=5"});
  const std::string ledger = file("ledger.jsonl"), report = file("evaluation.json");
  EXPECT_NE(ledger.find("validation_loss"), std::string::npos);
  for (const auto& [ranks, stage] : {std::pair(2, 0), {3, 3}}) {
    evaluate({"evaluation.stride=5", "parallel.zero=" + std::to_string(stage)}, ranks);
    EXPECT_EQ(file("ledger.jsonl"), ledger);
    EXPECT_EQ(file("evaluation.json"), report);
  }
  evaluate({"evaluation.stride=6"});
  EXPECT_NE(file("ledger.jsonl"), ledger) << "control";
}

TEST_F(Evaluation, TakesTheHeldOutPartOfTrainingDataWhereNothingIsNamed) {
  const std::string train = "data.train=" + (folder / "ids.jsonl").string();
  evaluate({train});
  EXPECT_NE(outcome.output.find("74 tokens scored"), std::string::npos) << outcome.output;
  write_file(folder / "deck.ini", "[run]\ntask = evaluate\noutput = " + (folder / "runs").string() +
                                      "\n[model]\npath = " + reference +
                                      "hf/llama\n[batch]\nsequence_length = 16\n[optimizer]\nbeta1 = 0.8\n");
  evaluate({train, "data.validation_fraction=0.4"});
  EXPECT_NE(outcome.output.find("29 tokens scored"), std::string::npos) << outcome.output;
  evaluate({}, 2, 78);
  EXPECT_NE(outcome.output.find("data.validation: is required"), std::string::npos) << outcome.output;
}

TEST_F(Evaluation, StopsWhenAskedAndBeginsAgain) {
  evaluate({});
  const std::string report = file("evaluation.json");
  fs::create_directories(folder / "runs/2");
  write_file(folder / "runs/2/STOP", "");
  evaluate({}, 2, 75);
  EXPECT_NE(outcome.output.find("stopped by the file STOP while it was evaluating"), std::string::npos)
      << outcome.output;
  EXPECT_FALSE(fs::exists(folder / "runs/2/evaluation.json"));
  runs = 1;
  evaluate({}, 2);
  EXPECT_EQ(file("evaluation.json"), report);
}

TEST_F(Evaluation, RefusesWhatCannotBeEvaluated) {
  evaluate({"evaluation.stride=17"}, 2, 78);
  EXPECT_NE(outcome.output.find("evaluation.stride: windows of batch.sequence_length = 16"), std::string::npos)
      << outcome.output;
  evaluate({"evaluation.stride=2", "data.packing=none"}, 1, 78);
  evaluate({"batch.sequence_length=33"}, 1, 78);
  evaluate({"model.path=" + reference + "evaluation"}, 2, 66);
  evaluate({"data.validation=" + (folder / "none.jsonl").string()}, 2, 66);
  EXPECT_NE(outcome.output.find("data.validation: "), std::string::npos) << outcome.output;
  EXPECT_EQ(outcome.output.find("data.train"), std::string::npos) << outcome.output;
  write_file(folder / "one.jsonl", "{\"input_ids\": [3]}\n");
  evaluate({"data.validation=" + (folder / "one.jsonl").string()}, 2, 65);
}

}  // namespace
}  // namespace llmtrain::test
