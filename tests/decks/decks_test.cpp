// The shipped decks, cut to a few steps, and the user interface around a run.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "decks/program.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;

class Decks : public ::testing::Test {
 protected:
  std::vector<std::string> in_folder(const std::string& deck, std::vector<std::string> more) const {
    std::vector<std::string> all = {(source_folder() / "inputs" / deck).string(),
                                    "run.output=" + (folder / "runs").string()};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  void expect_run(const std::string& deck, int ranks, int steps, std::vector<std::string> more = {}) {
    more.push_back("run.max_steps=" + std::to_string(steps));
    more.push_back("run.name=deck");
    const Outcome outcome = llmtrain({ranks, 1, in_folder(deck, more)});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    for (const char* file : {"deck.ini", "ledger.jsonl", "metrics.jsonl", "metrics.h5", "log.txt"}) {
      EXPECT_TRUE(fs::exists(folder / "runs/deck" / file)) << file;
    }
    const std::string ledger = read_file(folder / "runs/deck/ledger.jsonl");
    EXPECT_NE(ledger.find("{\"step\":" + std::to_string(steps) + ",\"learning_rate\""), std::string::npos) << ledger;
    EXPECT_EQ(ledger.find("{\"step\":" + std::to_string(steps + 1) + ","), std::string::npos) << ledger;
  }
  TemporaryFolder folder;
};

constexpr const char* too_large = "sanitizers need several times its memory";
const std::vector<std::string> short_evaluation = {"evaluation.batches=1", "log.samples_every_steps=0"};

TEST_F(Decks, QuickstartRuns) {
  expect_run("quickstart.ini", 2, 3, {"evaluation.batches=1", "log.samples_every_steps=3", "log.sample_length=20"});
  const std::string log = read_file(folder / "runs/deck/log.txt");
  EXPECT_NE(log.find("known optimum"), std::string::npos) << log;
  EXPECT_NE(log.find("sample"), std::string::npos) << log;
}
TEST_F(Decks, ShakespeareCharRuns) { expect_run("shakespeare_char.ini", 1, 5, short_evaluation); }
TEST_F(Decks, SmallRuns) { expect_run("small.ini", 2, 2, short_evaluation); }
TEST_F(Decks, MediumRuns) {
  if (std::string(LLMTRAIN_SANITIZED) == "yes") GTEST_SKIP() << too_large;
  expect_run("medium.ini", 2, 1,
             {"batch.global=2", "batch.micro=1", "evaluation.at_end=false", "log.samples_every_steps=0"});
}
TEST_F(Decks, LargeRuns) {
  if (std::string(LLMTRAIN_SANITIZED) == "yes") GTEST_SKIP() << too_large;
  expect_run("large.ini", 1, 1,
             {"batch.global=1", "batch.micro=1", "evaluation.at_end=false", "log.samples_every_steps=0"});
}
TEST_F(Decks, DistillRuns) {
  const std::string reference = (source_folder() / "tests/reference").string();
  expect_run("distill.ini", 2, 2,
             {"distill.teacher=" + reference + "/distillation/teacher", "data.tokenizer=" + reference + "/sft/model",
              "evaluation.batches=1", "checkpoint.export=none", "distill.top_k=4"});
}

TEST_F(Decks, AFinishedRunIsReportedAndNotTouched) {
  const std::vector<std::string> command = in_folder(
      "shakespeare_char.ini", {"run.max_steps=2", "run.name=a", "evaluation.batches=1", "log.samples_every_steps=0"});
  ASSERT_EQ(llmtrain({1, 1, command}).exit_code, 0);
  const std::string before = shell("ls -l --full-time " + (folder / "runs/a").string()).output;
  const Outcome again = llmtrain({2, 1, command});
  EXPECT_EQ(again.exit_code, 0) << again.output;
  EXPECT_NE(again.output.find("finished"), std::string::npos) << again.output;
  EXPECT_EQ(shell("ls -l --full-time " + (folder / "runs/a").string()).output, before);

  std::vector<std::string> other = command;
  other.push_back("run.seed=7");
  EXPECT_EQ(llmtrain({1, 1, other}).exit_code, 73);
  other.push_back("run.overwrite=true");
  EXPECT_EQ(llmtrain({1, 1, other}).exit_code, 0);
}

TEST_F(Decks, TheResolvedDeckResolvesToItself) {
  const Outcome first = llmtrain({1, 1, in_folder("small.ini", {"--check"})});
  ASSERT_EQ(first.exit_code, 0) << first.output;
  write_file(folder / "small.ini", first.output);
  const Outcome second = llmtrain({1, 1, {(folder / "small.ini").string(), "--check"}});
  ASSERT_EQ(second.exit_code, 0) << second.output;
  const auto values = [](const std::string& deck) {  // without the comments on the origin of values
    std::string out;
    for (size_t at = 0; at < deck.size();) {
      const size_t end = std::min(deck.find('\n', at), deck.size());
      const std::string line = deck.substr(at, end - at);
      const std::string value = line.substr(0, line.find(" ;"));
      out += value.substr(0, value.find_last_not_of(' ') + 1) + "\n";
      at = end + 1;
    }
    return out;
  };
  EXPECT_EQ(values(second.output), values(first.output));
}

TEST_F(Decks, EstimateAddsUpAndFallsWithRanks) {
  const auto estimate = [&](int ranks, int stage) {
    const Outcome outcome =
        llmtrain({1, 1,
                  in_folder("medium.ini", {"--estimate", "--json", "--ranks", std::to_string(ranks),
                                           "parallel.zero=" + std::to_string(stage), "precision.compute=fp32"})});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return nlohmann::json::parse(outcome.output.substr(outcome.output.find('{')));
  };
  const auto one = estimate(1, 1), many = estimate(8, 1), all = estimate(8, 3);
  int64_t sum = 0;
  for (const auto& [key, value] : one["bytes_per_rank"].items()) sum += key == "total" ? 0 : value.get<int64_t>();
  EXPECT_EQ(sum, one["bytes_per_rank"]["total"].get<int64_t>());
  const double parameters = one["parameters"];
  EXPECT_EQ(parameters, 124439808 + 768 * 47) << "GPT-2 124M and rows of padding";
  EXPECT_NEAR(one["bytes_per_rank"]["optimizer"].get<double>(), 8 * parameters, 0.001 * 8 * parameters);
  EXPECT_LT(many["bytes_per_rank"]["optimizer"].get<double>(), 0.14 * one["bytes_per_rank"]["optimizer"].get<double>());
  EXPECT_LT(all["bytes_per_rank"]["weights"].get<double>(), many["bytes_per_rank"]["weights"].get<double>());
  EXPECT_LT(all["bytes_per_rank"]["gradients"].get<double>(), many["bytes_per_rank"]["gradients"].get<double>());
}

}  // namespace
}  // namespace llmtrain::test
