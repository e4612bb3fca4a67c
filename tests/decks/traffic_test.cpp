// A run counts what its steps move between pretended nodes; --estimate predicts it.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

const TinyDeck deck{3, "", "[evaluation]\nat_end = false\n[log]\nevery_steps = 1\n"};

struct Layout {
  int ranks, per_node, stage;
  int accumulation, groups;
  const char* more = "run.seed=1";
};

class TrafficDeck : public RunFolder {
 protected:
  TrafficDeck() : RunFolder(text_of_lines(60), deck.text()) {}

  std::vector<std::string> settings(const Layout& l) const {
    return {fmt::format("parallel.zero={}", l.stage),
            fmt::format("batch.gradient_accumulation_steps={}", l.accumulation),
            fmt::format("parallel.reduction_groups={}", l.groups), l.more};
  }
  /// The last interval of a run.
  nlohmann::json run(const Layout& l) const {
    const std::string name = "run" + std::to_string(runs_++);
    const Outcome outcome =
        llmtrain({l.ranks, 1, arguments(name, settings(l)), "", fmt::format("LLMTRAIN_RANKS_PER_NODE={}", l.per_node)});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::istringstream lines(read_file(folder / name / "metrics.jsonl"));
    nlohmann::json last;
    for (std::string line; std::getline(lines, line);) {
      nlohmann::json j = nlohmann::json::parse(line);
      if (j.contains("traffic/port_bytes")) last = std::move(j);
    }
    EXPECT_FALSE(last.is_null()) << "no line has traffic";
    EXPECT_EQ(ledger(name).find("traffic"), std::string::npos);
    return last;
  }
  nlohmann::json estimate(const Layout& l, std::vector<std::string> options = {}) const {
    std::vector<std::string> all = arguments("a", settings(l));
    all.insert(all.end(), {"--estimate", "--json", "--ranks", std::to_string(l.ranks), "--ranks-per-node",
                           std::to_string(l.per_node)});
    all.insert(all.end(), options.begin(), options.end());
    const Outcome outcome = llmtrain({1, 1, all});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return nlohmann::json::parse(outcome.output.substr(outcome.output.find('{')));
  }

 private:
  mutable int runs_ = 0;
};

TEST_F(TrafficDeck, TheEstimateIsWithinTwoPercentOfTheCounters) {
  const std::vector<Layout> layouts = {{2, 1, 1, 4, 4}, {4, 2, 1, 4, 4}, {4, 2, 0, 4, 2}, {4, 1, 2, 8, 4},
                                       {3, 2, 3, 3, 3}, {4, 2, 3, 8, 4}, {4, 4, 3, 4, 4}, {2, 1, 3, 2, 1}};
  for (const Layout& l : layouts) {
    const nlohmann::json found = run(l), wanted = estimate(l)["traffic"];
    for (const char* name : {"port_bytes", "node_bytes", "messages"}) {
      const auto counted = found[std::string("traffic/") + name].get<double>();
      const auto predicted = wanted[name].get<double>();
      EXPECT_NEAR(counted, predicted, 0.02 * counted)
          << name << ": " << l.ranks << " ranks, " << l.per_node << " a node, stage " << l.stage << ", "
          << l.accumulation << " micro-batches in " << l.groups << " groups";
    }
    EXPECT_LE(found["traffic/requests"].get<double>(), wanted["requests"].get<double>());
    EXPECT_GE(found["traffic/files_opened"].get<double>(), 0);
    EXPECT_EQ(found["traffic/port_bytes"].get<double>() > 0, l.per_node < l.ranks);
  }
}

TEST_F(TrafficDeck, MuonMovesNoMoreThanTwoGathersOfItsMatrices) {
  constexpr double hidden = 2 * 12 * 24 * 24;  // elements of the blocks' matrices
  constexpr double gather = 2 * hidden / 2;    // in bf16, half of it from the other node
  for (const int stage : {0, 1, 3}) {
    const auto port_bytes = [&](const char* optimizer) {
      return run({4, 2, stage, 4, 4, optimizer})["traffic/port_bytes"].get<double>();
    };
    const double found = port_bytes("optimizer.name=muon") - port_bytes("optimizer.name=adamw");
    EXPECT_GT(found, 0.5 * gather) << "stage " << stage;
    EXPECT_LE(found, 2 * gather) << "stage " << stage;
  }
}

TEST_F(TrafficDeck, ThousandsOfRanksAreEstimatedInSeconds) {
  const Layout layout{4096, 8, 1, 4096, 4096};
  const nlohmann::json j = estimate(layout, {"--network", "200Gb/s,latency=2us,ports=2,flops=100T"});
  EXPECT_EQ(j["nodes"], 512);
  EXPECT_EQ(j["checkpoint_files"], 512);
  EXPECT_DOUBLE_EQ(j["traffic"]["files_opened_per_second"].get<double>(), 51.2);
  EXPECT_GT(j["network_seconds"].get<double>(), 0);
  EXPECT_DOUBLE_EQ(j["step_seconds"].get<double>(),
                   std::max(j["network_seconds"].get<double>(), j["computing_seconds"].get<double>()));
  const nlohmann::json small = estimate({4, 2, 1, 4, 4});
  EXPECT_EQ(small["checkpoint_files"], 4);
  EXPECT_FALSE(small.contains("step_seconds"));
}

TEST_F(TrafficDeck, IsNotLoggedWithoutSystem) {
  const Outcome outcome = llmtrain({2, 1, arguments("silent", {"log.system=false"})});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(read_file(folder / "silent/metrics.jsonl").find("traffic/"), std::string::npos);
}

}  // namespace
}  // namespace llmtrain::test
