// run.task = reward: steps equal those of TRL's RewardTrainer (tests/reference/preference), scores those of
// Transformers, and the ledger does not depend on the layout. The exported folder and adapter score as the run does.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/program.hpp"
#include "harness/temporary_folder.hpp"

namespace llmtrain::test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using Overrides = std::vector<std::string>;

class RewardRun : public testing::Test {
 protected:
  static std::string file(const std::string& name) {
    return (source_folder() / "tests/reference/preference" / name).string();
  }

  Outcome run(const std::string& name, const Overrides& overrides, int ranks = 1) {
    const std::string deck = (folder / "reward.ini").string();
    write_file(deck, "[run]\ntask = reward\nmax_steps = 5\noutput = " + folder.text() +
                         "\n[model]\npath = " + file("reward_model") + "\n[data]\ntrain = " + file("texts.jsonl") +
                         "\nvalidation_fraction = 0\nshuffle = false\n[batch]\nsequence_length = 512\nmicro = 1\n"
                         "global = 4\n[optimizer]\nweight_decay = 0\n[schedule]\nlearning_rate = 1e-3\n[precision]\n"
                         "compute = fp32\n[checkpoint]\nat_end = false\n");
    Overrides arguments = {deck, "run.name=" + name};
    arguments.insert(arguments.end(), overrides.begin(), overrides.end());
    return llmtrain({ranks, 1, arguments});
  }

  std::string ledger(const std::string& name, const Overrides& overrides, int ranks = 1) {
    const Outcome outcome = run(name, overrides, ranks);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return read_file(folder / name / "ledger.jsonl");
  }

  /// Lines of llmtool score: the rows', and the last one of all pairs.
  static std::vector<json> scores(const std::string& model, const std::string& rows, const Overrides& more = {}) {
    Overrides arguments = {"score", "--metric", "reward", "--model", model, "--input", file(rows), "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = llmtool(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::vector<json> lines;
    std::istringstream text(outcome.output);
    for (std::string line; std::getline(text, line);) lines.push_back(json::parse(line));
    return lines;
  }

  TemporaryFolder folder;
};

double number(const json& text) { return std::strtod(text.get<std::string>().c_str(), nullptr); }

/// Largest differences of a ledger from TRL's steps: relative ones of loss and norm, absolute ones of metrics.
struct StepDifferences {
  double loss = 0, norm = 0, metrics = 0;
};
StepDifferences compare_steps(const std::string& ledger, const json& expected) {
  StepDifferences result;
  std::istringstream lines(ledger);
  size_t step = 0;
  for (std::string line; std::getline(lines, line); ++step) {
    const json ours = json::parse(line);
    const double loss = expected["loss"][step], norm = expected["grad_norm"][step];
    result.loss = std::max(result.loss, std::abs(number(ours["loss"]) - loss) / loss);
    result.norm = std::max(result.norm, std::abs(number(ours["grad_norm"]) - norm) / norm);
    for (const char* name : {"accuracy", "margin", "mean_reward"}) {
      const double difference = number(ours["metrics"][name]) - expected[name][step].get<double>();
      result.metrics = std::max(result.metrics, std::abs(difference));
    }
  }
  EXPECT_EQ(step, expected["loss"].size());
  return result;
}

double largest_difference(const std::vector<json>& lines, const json& expected) {
  EXPECT_EQ(lines.size(), expected.size() + 1);
  double largest = 0;
  for (size_t row = 0; row < expected.size(); ++row) {
    largest = std::max(largest, std::abs(lines[row]["chosen"].get<double>() - expected[row][0].get<double>()));
    largest = std::max(largest, std::abs(lines[row]["rejected"].get<double>() - expected[row][1].get<double>()));
  }
  return largest;
}

TEST_F(RewardRun, StepsAreThoseOfTrl) {
  const json expected = json::parse(read_file(file("reward.json")));
  const std::map<std::string, Overrides> cases = {
      {"plain", {}},
      {"margin", {"data.train=" + file("margins.jsonl")}},
      {"centred", {"reward.center_coefficient=0.01"}},
      {"both", {"data.train=" + file("margins.jsonl"), "reward.center_coefficient=0.1"}},
      {"conversations", {"data.train=" + file("conversations.jsonl"), "run.max_steps=2"}},
      {"short", {"batch.sequence_length=60", "data.overflow=drop", "run.max_steps=3"}},
      {"lora", {"model.path=" + file("../sft/model"), "run.finetuning=lora", "lora.path=" + file("reward_adapter")}}};
  for (const auto& [name, overrides] : cases) {
    SCOPED_TRACE(name);
    const StepDifferences found = compare_steps(ledger(name, overrides), expected[name]);
    EXPECT_LT(found.loss, 1e-5);
    EXPECT_LT(found.norm, 2e-5);
    EXPECT_LT(found.metrics, 1e-5);
  }
  const std::string control = ledger("control", {"reward.center_coefficient=0.0101"});
  EXPECT_GT(compare_steps(control, expected["centred"]).norm, 1e-4) << "the control";
}

// Packed pairs, shards, a fresh head, a resume elsewhere.
TEST_F(RewardRun, LedgerIsIdenticalForLayoutsAndResumes) {
  const Overrides common = {"model.path=" + file("../sft/model"), "batch.micro=2", "data.shuffle=true",
                            "log.parameter_hash_every_steps=1"};
  const auto with = [&](Overrides more) {
    more.insert(more.end(), common.begin(), common.end());
    return more;
  };
  const std::string one = ledger("one", with({}));
  EXPECT_EQ(one, ledger("two", with({"parallel.zero=0"}), 2));
  EXPECT_EQ(one, ledger("shards", with({"parallel.zero=3"}), 3));
  ledger("part", with({"run.max_steps=2", "checkpoint.at_end=true"}));
  EXPECT_EQ(one, ledger("part", with({"parallel.zero=3"}), 2));
  EXPECT_NE(one, ledger("seed", with({"run.seed=43", "data.seed=42"}))) << "the control: another head";
}

TEST_F(RewardRun, ScoresAreThoseOfTransformers) {
  const json expected = json::parse(read_file(file("reward.json")))["scores"];
  const std::vector<json> texts = scores(file("reward_model"), "texts.jsonl");
  EXPECT_LT(largest_difference(texts, expected["texts"]), 1e-5);
  EXPECT_LT(largest_difference(scores(file("reward_model"), "conversations.jsonl"), expected["conversations"]), 1e-5);
  const std::vector<json> adapted = scores(file("../sft/model"), "texts.jsonl", {"--adapter", file("reward_adapter")});
  EXPECT_LT(largest_difference(adapted, expected["adapter"]), 1e-5);
  EXPECT_GT(largest_difference(adapted, expected["texts"]), 1e-2) << "the control";

  const Outcome outcome = run("evaluation", {"run.task=evaluate"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  const json report = json::parse(read_file(folder / "evaluation" / "evaluation.json"));
  const json& all = texts.back();
  EXPECT_EQ(report["pairs"], all["pairs"]);
  EXPECT_DOUBLE_EQ(report["accuracy"].get<double>(), all["accuracy"].get<double>());
  EXPECT_NEAR(report["margin"].get<double>(), all["margin"].get<double>(), 1e-6);
  EXPECT_NEAR(report["mean_reward"].get<double>(), all["mean_reward"].get<double>(), 1e-6);
}

TEST_F(RewardRun, ExportsScoreAsTheRun) {
  const Overrides trained = {"checkpoint.export=last", "checkpoint.at_end=true", "model.path=" + file("../sft/model")};
  ledger("full", trained);
  const std::string run = (folder / "full").string(), exported = run + "/export";
  const json config = json::parse(read_file(exported + "/config.json"));
  EXPECT_EQ(config["architectures"], json({"LlamaForSequenceClassification"}));
  EXPECT_EQ(config["num_labels"], 1);
  EXPECT_EQ(config["id2label"].size(), 1);
  EXPECT_EQ(config["pad_token_id"], 318);
  EXPECT_FALSE(std::filesystem::exists(exported + "/generation_config.json"));
  EXPECT_EQ(scores(run, "texts.jsonl"), scores(exported, "texts.jsonl"));

  Overrides adapted = trained;
  for (const char* more : {"run.finetuning=lora", "lora.r=4", "checkpoint.export_merged=true"}) {
    adapted.emplace_back(more);
  }
  ledger("lora", adapted);
  const std::string lora = (folder / "lora").string();
  const std::vector<json> own = scores(lora, "texts.jsonl");
  const std::vector<json> loaded = scores(file("../sft/model"), "texts.jsonl", {"--adapter", lora + "/adapter"});
  EXPECT_EQ(own, loaded);
  json values = json::array();
  for (size_t row = 0; row + 1 < own.size(); ++row) values.push_back({own[row]["chosen"], own[row]["rejected"]});
  EXPECT_LT(largest_difference(scores(lora + "/export", "texts.jsonl"), values), 1e-5);
}

TEST_F(RewardRun, TrainsAdaptersOfAQuantisedModel) {
  std::vector<std::string> ledgers;
  for (const std::string bits : {"4", "8"}) {
    SCOPED_TRACE(bits);
    const Overrides deck = {"run.finetuning=lora", "model.path=" + file("../sft/model"),
                            "lora.path=" + file("reward_adapter"), "quantization.bits=" + bits};
    const std::string one = ledger("one" + bits, deck);
    Overrides shards = deck;
    shards.emplace_back("parallel.zero=3");
    EXPECT_EQ(ledger("two" + bits, shards, 2), one);
    ledgers.push_back(one);
  }
  EXPECT_NE(ledgers[0], ledgers[1]) << "the control";
}

TEST_F(RewardRun, RefusesWhatCannotBeMeant) {
  const auto message = [&](int code, const Overrides& overrides) {
    const Outcome outcome = run("refused", overrides);
    EXPECT_EQ(outcome.exit_code, code) << outcome.output;
    return outcome.output;
  };
  EXPECT_THAT(message(78, {"log.samples_every_steps=1"}), HasSubstr("writes none"));
  EXPECT_THAT(message(78, {"run.task=sft", "model.path=" + file("../sft/model"), "reward.center_coefficient=1"}),
              HasSubstr("reward"));
  EXPECT_THAT(message(65, {"data.train=" + file("../sft/completions.jsonl")}), HasSubstr("not pairs"));
  EXPECT_THAT(message(65, {"run.task=sft", "data.train=" + file("../sft/completions.jsonl")}), HasSubstr("no head"));
  const std::filesystem::path two = folder / "two_labels";
  std::filesystem::copy(file("reward_model"), two);
  json config = json::parse(read_file(two / "config.json"));
  config["id2label"] = {{"0", "bad"}, {"1", "good"}};
  write_file(two / "config.json", config.dump());
  EXPECT_THAT(message(65, {"model.path=" + two.string()}), HasSubstr("num_labels: 2"));
  const Outcome generated = llmtool({"generate", "--model", file("reward_model"), "--prompt", "a"});
  EXPECT_EQ(generated.exit_code, 65);
  EXPECT_THAT(generated.output, HasSubstr("reward model"));
  const Outcome scored = llmtool({"score", "--metric", "reward", "--model", file("../sft/model"), "--input", "-"});
  EXPECT_THAT(scored.output, HasSubstr("not a reward model"));
}

}  // namespace
}  // namespace llmtrain::test
