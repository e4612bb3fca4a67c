// Optimizers in whole runs: the ledger of any number of ranks, and 8-bit AdamW's losses beside AdamW's.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

/// The matrices of the blocks have 4,096 elements and more.
const DocumentsDeck deck{24, 2, 4, "[evaluation]\nevery_steps = 0\nat_end = false\n", 66};

class OptimizersDeck : public RunFolder {
 protected:
  OptimizersDeck() : RunFolder(text_of_documents(40), deck.text()) {}

  void run(const std::string& name, int ranks, std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), {"precision.compute=fp32", "schedule.learning_rate=2e-3"});
    const Outcome outcome = start(name, ranks, overrides);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  }
  std::vector<double> losses(const std::string& name) const {
    std::istringstream lines(ledger(name));
    std::vector<double> all;
    for (std::string line; std::getline(lines, line);) {
      const auto json = nlohmann::json::parse(line);
      if (json.contains("loss")) all.push_back(std::strtod(json["loss"].get<std::string>().c_str(), nullptr));
    }
    return all;
  }
  double distance(const std::string& a, const std::string& b) const {
    const std::vector<double> x = losses(a), y = losses(b);
    EXPECT_EQ(x.size(), size_t{24});
    EXPECT_EQ(y.size(), x.size());
    double worst = 0;
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) worst = std::max(worst, std::abs(x[i] - y[i]));
    return worst;
  }
};

TEST_F(OptimizersDeck, EightBitsFollowFp32OnAnyRanks) {
  run("adamw", 1, {});
  run("bits", 1, {"optimizer.name=adamw_8bit"});
  run("ranks", 2, {"optimizer.name=paged_adamw_8bit", "parallel.zero=3"});
  run("sgd", 1, {"optimizer.name=sgd"});
  EXPECT_EQ(ledger("ranks"), ledger("bits"));
  EXPECT_LT(distance("adamw", "bits"), 0.01);
  EXPECT_GT(distance("adamw", "bits"), 0) << "control: the moments have 8 bits";
  EXPECT_GT(distance("adamw", "sgd"), 0.1) << "control: another optimizer";
}

TEST_F(OptimizersDeck, AdafactorIsTheSameOnAnyRanks) {
  run("one", 1, {"optimizer.name=adafactor"});
  run("two", 2, {"optimizer.name=adafactor", "parallel.zero=2"});
  EXPECT_EQ(ledger("two"), ledger("one"));
}

TEST_F(OptimizersDeck, MuonIsTheSameOnAnyRanks) {
  run("one", 1, {"optimizer.name=muon"});
  run("three", 3, {"optimizer.name=muon", "parallel.zero=3"});
  EXPECT_EQ(ledger("three"), ledger("one"));
}

}  // namespace
}  // namespace llmtrain::test
