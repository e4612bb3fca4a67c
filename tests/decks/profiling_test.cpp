// log.profile in whole runs: the table adds up, the trace can be read, and the results are those of a run without it.

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "decks/program.hpp"
#include "decks/span_log.hpp"

namespace llmtrain::test {
namespace {

struct Profiled {
  std::string ledger, log;
  nlohmann::json trace;
};

std::vector<std::string> arguments_of(const TemporaryFolder& folder, const std::string& name, int steps) {
  return {(source_folder() / "inputs/quickstart.ini").string(),
          "run.output=" + folder.text(),
          "run.name=" + name,
          "run.max_steps=5",
          "model.d_model=48",
          "model.n_layers=2",
          "batch.sequence_length=64",
          "data.cache=" + (folder / "cache").string(),
          "evaluation.at_end=false",
          "checkpoint.at_end=false",
          "log.samples_every_steps=0",
          "log.profile=" + std::to_string(steps)};
}

Profiled run(const TemporaryFolder& folder, int ranks, int steps, const std::vector<std::string>& more = {}) {
  const std::string name = "run" + std::to_string(ranks) + "_" + std::to_string(steps);
  std::vector<std::string> arguments = arguments_of(folder, name, steps);
  arguments.insert(arguments.end(), more.begin(), more.end());
  const Outcome outcome = llmtrain({ranks, 1, arguments});
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

/// Columns of the last row: arithmetic of the step, and what share of the machine's that is.
std::pair<double, double> speed_of_step(const std::string& log) {
  const size_t row = log.find("\n  total ");
  if (row == std::string::npos || log.find('\n', row + 1) - row < 88) return {};
  return {std::stod(log.substr(row + 69, 10)), std::stod(log.substr(row + 87, 9))};
}

/// Every span lies inside of the one around it, and they come in the order of their beginnings.
void expect_nested(const nlohmann::json& trace) {
  constexpr double rounding = 0.0021;  // microseconds, of two numbers
  std::map<int, std::vector<std::pair<double, double>>> open;
  std::map<int, double> last;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") != "X") continue;
    const int process = event.at("pid");
    const double begin = event.at("ts"), end = begin + event.at("dur").get<double>();
    EXPECT_GE(begin, last[process]) << event;
    last[process] = begin;
    auto& around = open[process];
    while (!around.empty() && around.back().second <= begin + rounding) around.pop_back();
    EXPECT_LE(end, around.empty() ? end : around.back().second + rounding) << event;
    around.emplace_back(begin, end);
  }
}

class ProfilingOfRanks : public ::testing::TestWithParam<int> {};

TEST_P(ProfilingOfRanks, TableAddsUpAndTheTraceIsReadable) {
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
  const auto [gflops, of_limit] = speed_of_step(on.log);
  EXPECT_GT(gflops, 0) << on.log;
  EXPECT_GE(of_limit, 0);
  expect_nested(on.trace);
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

TEST(Profiling, ARunThatStopsEarlySaysWhatItHasRecorded) {
  const TemporaryFolder folder;
  const Profiled early = run(folder, 1, 1000,
                             {"evaluation.every_steps=1", "evaluation.batches=1",
                              "evaluation.early_stopping_patience=1", "evaluation.early_stopping_threshold=1000"});
  EXPECT_NE(early.log.find("stopped early after 2 steps"), std::string::npos) << early.log;
  EXPECT_NE(early.log.find("profile    steps 1 to 2"), std::string::npos) << early.log;
}

TEST(Profiling, TheTraceIsTheRunsOwn) {
  const TemporaryFolder folder;
  run(folder, 1, 2);
  EXPECT_TRUE(std::filesystem::exists(folder / "run1_2/trace.json"));
  std::vector<std::string> replaced = arguments_of(folder, "run1_2", 0);
  replaced.emplace_back("run.overwrite=true");
  EXPECT_EQ(llmtrain({1, 1, replaced}).exit_code, 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "run1_2/trace.json")) << "of the run that was replaced";

  // Of somebody else: nothing is replaced.
  std::filesystem::create_directory(folder / "other");
  write_file(folder / "other/trace.json", "mine");
  const Outcome refused = llmtrain({1, 1, arguments_of(folder, "other", 3)});
  EXPECT_EQ(refused.exit_code, 73) << refused.output;
  EXPECT_EQ(read_file(folder / "other/trace.json"), "mine");
}

// As connectors of Kokkos Tools see a run, with the program's own profile in one of its steps and without.
TEST(Profiling, KokkosToolsSeeTheSpansAsRegions) {
  const TemporaryFolder folder;
  const auto ledger_of = [&](const std::string& name, int profiled, const std::string& environment) {
    const Outcome outcome = llmtrain({1, 2, arguments_of(folder, name, profiled), {}, environment});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return read_file(folder / (name + "/ledger.jsonl"));
  };
  const std::string alone = ledger_of("alone", 0, "");
  for (const int profiled : {0, 1}) {
    const std::string name = "tool" + std::to_string(profiled);
    const std::filesystem::path log = folder / (name + ".spans");
    EXPECT_EQ(ledger_of(name, profiled, "KOKKOS_TOOLS_LIBS=" + programs::span_tool + " SPAN_TOOL_LOG=" + log.string()),
              alone);
    const SpanLog seen = read_span_log(log);
    EXPECT_EQ(seen.threads.size(), 1) << "connectors have one stack of regions";
    EXPECT_EQ(seen.begun.at("step"), 5);
    for (const char* phase : {"step/data", "step/forward", "step/backward", "step/update"}) {
      EXPECT_GE(seen.begun.count(phase), 1) << phase;
    }
  }
}

#ifdef LLMTRAIN_FAULT_INJECTION
TEST(Profiling, ATraceThatCannotBeWrittenEndsNoRun) {
  for (const std::string fault : {"CALLS=write LLMTRAIN_FAULT_HOW=full", "CALLS=create LLMTRAIN_FAULT_HOW=eacces"}) {
    const TemporaryFolder folder;
    const Outcome outcome = llmtrain({2,
                                      1,
                                      arguments_of(folder, "run", 2),
                                      {},
                                      "LD_PRELOAD=" + programs::fault_library +
                                          " LLMTRAIN_FAULT_AT=1 "
                                          "LLMTRAIN_FAULT_PATH=trace.json LLMTRAIN_FAULT_" +
                                          fault});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_NE(outcome.output.find("the run goes on without the trace"), std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find("ms/step"), std::string::npos) << outcome.output;
    EXPECT_FALSE(std::filesystem::exists(folder / "run/trace.json"));
    EXPECT_TRUE(std::filesystem::exists(folder / "run/finished.json"));
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(Ranks, ProfilingOfRanks, ::testing::Values(1, 2));

}  // namespace
}  // namespace llmtrain::test
