// A run counts what its steps move between pretended nodes; --estimate predicts it.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
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
  int context = 1, tensor = 1, heads = 2;
  std::vector<std::string> keys = {};
};

class TrafficDeck : public RunFolder {
 protected:
  TrafficDeck() : RunFolder(text_of_lines(60), deck.text()) {}

  std::vector<std::string> settings(const Layout& l) const {
    std::vector<std::string> all = {fmt::format("parallel.zero={}", l.stage),
                                    fmt::format("batch.gradient_accumulation_steps={}", l.accumulation),
                                    fmt::format("parallel.reduction_groups={}", l.groups),
                                    fmt::format("parallel.context={}", l.context),
                                    fmt::format("parallel.tensor={}", l.tensor),
                                    fmt::format("model.n_heads={}", l.heads),
                                    l.more};
    all.insert(all.end(), l.keys.begin(), l.keys.end());
    return all;
  }
  /// Every step of a run that `launch` starts.
  std::vector<nlohmann::json> steps_of(const std::string& name, const Launch& launch) const {
    const Outcome outcome = llmtrain(launch);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    std::istringstream lines(read_file(folder / name / "metrics.jsonl"));
    std::vector<nlohmann::json> steps;
    for (std::string line; std::getline(lines, line);) {
      nlohmann::json j = nlohmann::json::parse(line);
      if (j.contains("traffic/port_bytes")) steps.push_back(std::move(j));
    }
    EXPECT_FALSE(steps.empty()) << "no line has traffic";
    EXPECT_EQ(ledger(name).find("traffic"), std::string::npos);
    return steps;
  }
  static std::string on_nodes_of(int ranks) { return fmt::format("LLMTRAIN_RANKS_PER_NODE={}", ranks); }
  /// The last step of a run.
  nlohmann::json run(const Layout& l) const {
    const std::string name = "run" + std::to_string(runs_++);
    return steps_of(name, {l.ranks, 1, arguments(name, settings(l)), "", on_nodes_of(l.per_node)}).back();
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
  const char *tree = "parallel.reduction=tree", *ordered = "parallel.reduction=ordered", *muon = "optimizer.name=muon";
  const std::vector<Layout> layouts = {{2, 1, 1, 4, 4, ordered}, {4, 2, 1, 4, 4, tree}, {4, 2, 0, 4, 2, ordered},
                                       {3, 2, 2, 8, 6, tree},    {3, 2, 3, 3, 3, tree}, {4, 2, 3, 8, 4, ordered},
                                       {4, 4, 1, 12, 12, tree},  {2, 1, 3, 2, 1, tree}, {4, 2, 1, 4, 4, muon},
                                       {3, 2, 3, 3, 3, muon},    {4, 2, 0, 4, 4, muon}, {4, 1, 0, 4, 4, muon}};
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
    EXPECT_EQ(found["traffic/port_bytes"].get<double>() > 0, l.per_node < l.ranks);
  }
}

// A full step of all axes; heads are exchanged in shapes that are known to the byte.
TEST_F(TrafficDeck, HasRowsOfTheAxesOfAMesh) {
  const char* tree = "parallel.reduction=tree";
  for (const Layout& l :
       {Layout{2, 1, 1, 2, 0, tree, 2}, Layout{4, 2, 1, 3, 0, tree, 2}, Layout{4, 1, 3, 4, 0, tree, 2}}) {
    const std::string where = fmt::format("{} ranks, {} a node, stage {}", l.ranks, l.per_node, l.stage);
    const nlohmann::json found = run(l), wanted = estimate(l)["traffic"];
    for (const std::string name : {"port_bytes", "node_bytes", "messages"}) {
      const auto counted = found["traffic/" + name].get<double>();
      EXPECT_NEAR(counted, wanted[name].get<double>(), 0.02 * counted) << name << ": " << where;
      const auto of_context = found["traffic/context/" + name].get<double>();
      EXPECT_EQ(of_context, wanted["context"][name].get<double>()) << name << ": " << where;
      const auto of_data = found["traffic/data/" + name].get<double>();
      EXPECT_NEAR(of_data, wanted["data"][name].get<double>(), 0.02 * of_data) << name << ": " << where;
    }
    EXPECT_GT(found["traffic/context/messages"].get<double>(), 0) << where;
    EXPECT_EQ(found["traffic/context/port_bytes"].get<double>() > 0, l.per_node == 1) << where << ": neighbours share";
    EXPECT_FALSE(found.contains("traffic/tensor/messages"));
  }
  EXPECT_FALSE(run({2, 1, 1, 2, 0, tree}).contains("traffic/data/port_bytes")) << "control: one axis";
  EXPECT_FALSE(estimate({2, 1, 1, 2, 0, tree})["traffic"].contains("data"));
}

// Two ranks swap sums, four divide them; the head sums for each block of rows.
TEST_F(TrafficDeck, HasARowOfTheTensorAxis) {
  const char *blocks = "parallel.context_blocks=2", *recompute = "memory.recompute=block";
  for (const Layout& l : {Layout{2, 2, 1, 2, 0, recompute, 1, 2}, Layout{4, 4, 1, 2, 0, "run.seed=2", 1, 4, 4},
                          Layout{2, 2, 1, 2, 0, blocks, 1, 2, 4}, Layout{4, 2, 1, 3, 0, blocks, 2, 2, 4}}) {
    const std::string where = fmt::format("{} ranks, {} x {}, {}", l.ranks, l.context, l.tensor, l.more);
    const nlohmann::json found = run(l), wanted = estimate(l)["traffic"];
    for (const std::string name : {"node_bytes", "messages"}) {
      const auto counted = found["traffic/tensor/" + name].get<double>();
      EXPECT_GT(counted, 0) << name << ": " << where;
      EXPECT_NEAR(counted, wanted["tensor"][name].get<double>(), 0.01 * counted) << name << ": " << where;
    }
  }
}

// Ranks that share experts lie in two nodes where tensor ranks fill one. Routers choose some experts more often.
TEST_F(TrafficDeck, HasARowOfTheExpertAxis) {
  Layout l{4, 2, 1, 6, 0};
  l.keys = {"model.family=mixtral", "model.n_experts=4", "model.d_ff_expert=24"};
  for (const int tensor : {1, 2}) {
    l.tensor = tensor;
    l.more = tensor == 1 ? "parallel.expert=4" : "parallel.expert=2";
    const nlohmann::json found = run(l), wanted = estimate(l)["traffic"]["expert"];
    for (const std::string name : {"port_bytes", "node_bytes", "messages"}) {
      const auto counted = found["traffic/expert/" + name].get<double>();
      EXPECT_NEAR(counted, wanted[name].get<double>(), 0.2 * counted) << name << ": tensor " << tensor;
      EXPECT_EQ(counted > 0, name != "node_bytes" || tensor == 1) << name;
    }
  }
}

// A row goes to each node if a token has all experts, and every expert has all rows.
TEST_F(TrafficDeck, RowsGoToANodeOnce) {
  Layout l{4, 2, 1, 8, 0, "parallel.expert=4"};
  l.keys = {"model.family=mixtral", "model.n_experts=4", "model.d_ff_expert=24", "model.experts_per_token=4"};
  const nlohmann::json found = run(l), wanted = estimate(l)["traffic"]["expert"];
  for (const std::string name : {"port_bytes", "node_bytes", "messages"}) {
    const auto counted = found["traffic/expert/" + name].get<double>();
    EXPECT_NEAR(counted, wanted[name].get<double>(), 0.02 * counted) << name;
  }
  l.per_node = 1;  // a rank sends to three nodes, what two ranks would send to two each
  const double apart = 4.0 / 3 * run(l)["traffic/expert/port_bytes"].get<double>();
  EXPECT_LT(found["traffic/expert/port_bytes"].get<double>(), 0.9 * apart) << "control: to each expert by itself";
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

#ifdef LLMTRAIN_FAULT_INJECTION
/// What a preloaded library counts in the ranks of a run.
struct Calls {
  std::vector<int64_t> messages;  ///< calls of MPI_Isend, by rank
  int64_t opens = 0;              ///< of files below the run's folder and of its data, all ranks
};

class CountedDeck : public TrafficDeck {
 protected:
  /// Two nodes of two ranks.
  Calls count(const std::string& name, int steps, const std::vector<std::string>& overrides,
              std::vector<nlohmann::json>* metrics = nullptr) const {
    const std::string counts = (folder / (name + ".count")).string();
    std::vector<std::string> words = {
        "LD_PRELOAD=" + programs::fault_library,    "LLMTRAIN_FAULT_HOW=count",
        "LLMTRAIN_FAULT_CALLS=open,create,message", "LLMTRAIN_FAULT_PATH=" + folder.text(),
        "LLMTRAIN_FAULT_COUNT=" + counts,           programs::llmtrain};
    std::vector<std::string> all = overrides;
    all.push_back(fmt::format("run.max_steps={}", steps));
    for (const std::string& argument : arguments(name, all)) words.push_back(argument);
    const std::vector<nlohmann::json> steps_seen = steps_of(name, {4, 1, words, "env", on_nodes_of(2)});
    if (metrics != nullptr) *metrics = steps_seen;
    Calls calls;
    for (int rank = 0; rank < 4; ++rank) {
      std::istringstream lines(read_file(counts + "." + std::to_string(rank)));
      int64_t number = 0;
      lines >> number;
      std::map<std::string, int64_t> of;
      for (std::string kind; lines >> kind >> number;) of[kind] = number;
      calls.messages.push_back(of.at("message"));
      calls.opens += of.at("open") + of.at("create");
    }
    return calls;
  }
};

// The library sees what the program does, whatever the program counts itself.
TEST_F(CountedDeck, MessagesAreThoseThatMpiSees) {
  for (const std::string order : {"tree", "ordered"}) {
    for (const int zero : {1, 3}) {
      const std::vector<std::string> overrides = {"parallel.reduction=" + order, fmt::format("parallel.zero={}", zero),
                                                  "batch.gradient_accumulation_steps=4", "parallel.reduction_groups=4"};
      const std::string name = fmt::format("{}-{}", order, zero);
      std::vector<nlohmann::json> metrics;
      const Calls few = count(name + "-few", 3, overrides), more = count(name + "-more", 7, overrides, &metrics);
      int64_t most = 0, counted = 0;
      for (size_t rank = 0; rank < 4; ++rank) most = std::max(most, more.messages[rank] - few.messages[rank]);
      ASSERT_EQ(metrics.size(), 7u);
      for (size_t step = 3; step < 7; ++step) counted += metrics[step]["traffic/messages"].get<int64_t>();
      EXPECT_EQ(counted, most) << name;
      EXPECT_GT(most, 0) << name;
    }
  }
}

TEST_F(CountedDeck, AStepOpensNoFiles) {
  const std::vector<std::string> quiet = {"parallel.reduction=tree", "checkpoint.at_end=false", "log.every_steps=5"};
  std::vector<std::string> saving = quiet;
  saving.insert(saving.end(), {"checkpoint.every_steps=5", "checkpoint.files=node"});
  count("first", 1, quiet);  // makes the caches
  const int64_t before = count("few", 10, quiet).opens, after = count("more", 40, quiet).opens;
  EXPECT_NEAR(static_cast<double>(after), static_cast<double>(before), 4) << "a status a node every two seconds";
  std::vector<nlohmann::json> steps;
  EXPECT_GT(count("saving", 40, saving, &steps).opens, before + 60) << "control";
  EXPECT_GT(steps.back()["traffic/files_opened"].get<double>(), 0.2) << "of a checkpoint every five steps";
}
#endif

TEST_F(TrafficDeck, IsNotLoggedWithoutSystem) {
  const Outcome outcome = llmtrain({2, 1, arguments("silent", {"log.system=false"})});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(read_file(folder / "silent/metrics.jsonl").find("traffic/"), std::string::npos);
}

}  // namespace
}  // namespace llmtrain::test
