// log.profile in whole runs: the table adds up, the trace can be read, and the results are those of a run without it.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "decks/program.hpp"

namespace llmtrain::test {
namespace {

struct Profiled {
  std::string ledger, log;
  nlohmann::json trace;
};

Profiled run(const TemporaryFolder& folder, int ranks, int steps) {
  const std::string name = "run" + std::to_string(ranks) + "_" + std::to_string(steps);
  const Outcome outcome =
      llmtrain({ranks,
                1,
                {(source_folder() / "inputs/quickstart.ini").string(), "run.output=" + folder.text(),
                 "run.name=" + name, "run.max_steps=5", "model.d_model=48", "model.n_layers=2",
                 "batch.sequence_length=64", "data.cache=" + (folder / "cache").string(), "evaluation.at_end=false",
                 "checkpoint.at_end=false", "log.samples_every_steps=0", "log.profile=" + std::to_string(steps)}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  Profiled result;
  result.ledger = read_file(folder / (name + "/ledger.jsonl"));
  result.log = read_file(folder / (name + "/log.txt"));
  if (steps > 0) result.trace = nlohmann::json::parse(read_file(folder / (name + "/trace.json")));
  return result;
}

/// The column ms/step of the rows with such a phase; all rows but the last with "".
double sum_of(const std::string& log, const std::string& phase) {
  std::istringstream lines(log.substr(log.find("ms/step")));
  std::string line;
  std::getline(lines, line);
  double sum = 0;
  while (std::getline(lines, line) && line.starts_with("  ")) {
    const std::string name = line.substr(2, line.find_first_of(' ', 2) - 2);
    const bool total = name == "total";
    if (phase.empty() ? !total : name == phase) sum += std::stod(line.substr(50, 10));
    if (total) break;
  }
  return sum;
}

class Profiling : public ::testing::TestWithParam<int> {};

TEST_P(Profiling, TableAddsUpAndTheTraceIsReadable) {
  const int ranks = GetParam();
  const TemporaryFolder folder;
  const Profiled off = run(folder, ranks, 0), on = run(folder, ranks, 2);
  EXPECT_EQ(on.ledger, off.ledger);
  EXPECT_EQ(off.log.find("ms/step"), std::string::npos);
  ASSERT_NE(on.log.find("ms/step"), std::string::npos) << on.log;
  const double total = sum_of(on.log, "total");
  EXPECT_GT(total, 0);
  EXPECT_NEAR(sum_of(on.log, ""), total, 0.001 * 60) << "each of the rows is rounded\n" << on.log;
  EXPECT_LT(sum_of(on.log, "forward"), total);
  for (const char* part : {"linear_forward", "linear_backward_weight", "attention_backward", "adamw_update"}) {
    EXPECT_NE(on.log.find(part), std::string::npos) << part;
  }
  EXPECT_EQ(on.log.find("waiting for the slowest rank") != std::string::npos, ranks > 1);

  std::set<int> processes;
  int steps = 0;
  for (const auto& event : on.trace.at("traceEvents")) {
    processes.insert(event.at("pid").get<int>());
    if (event.at("ph") == "M") continue;
    EXPECT_EQ(event.at("ph"), "X");
    EXPECT_GE(event.at("ts").get<double>(), 0);
    EXPECT_GE(event.at("dur").get<double>(), 0);
    EXPECT_TRUE(event.at("args").contains("bytes"));
    steps += event.at("name") == "step" ? 1 : 0;
  }
  EXPECT_EQ(steps, 2 * ranks);
  EXPECT_EQ(static_cast<int>(processes.size()), ranks);
}

INSTANTIATE_TEST_SUITE_P(Ranks, Profiling, ::testing::Values(1, 2));

}  // namespace
}  // namespace llmtrain::test
