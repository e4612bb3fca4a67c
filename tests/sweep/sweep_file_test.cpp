// The runs of a sweep: combinations, lists and draws, keys that follow or need others, and what is refused.

#include "sweep/sweep_file.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "core/error.hpp"
#include "harness/temporary_folder.hpp"

namespace llmtrain {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class Sweep : public testing::Test {
 protected:
  SweepFile read(const std::string& text) const {
    std::ofstream(folder_ / "s.ini") << text;
    return read_sweep(folder_.text() + "/s.ini");
  }
  std::vector<std::string> values(const std::string& text) const {
    const SweepFile sweep = read(text);
    std::vector<std::string> all;
    for (const SweepRun& run : plan_sweep(sweep, "out")) all.push_back(values_text(sweep, run));
    return all;
  }
  std::string refusal(const std::string& text) const {
    try {
      values(text);
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  }

  test::TemporaryFolder folder_;
};

TEST_F(Sweep, GridHasEveryCombination) {
  EXPECT_THAT(values("[model]\nd_model = {64, 128}\nn_heads = {2, 4} with model.d_model\n"
                     "[optimizer]\nname = {adamw, muon}\nmomentum = {0.9, 0.95} if optimizer.name = muon\n"),
              ElementsAre("model.d_model = 64, model.n_heads = 2, optimizer.name = adamw",
                          "model.d_model = 64, model.n_heads = 2, optimizer.name = muon, optimizer.momentum = 0.9",
                          "model.d_model = 64, model.n_heads = 2, optimizer.name = muon, optimizer.momentum = 0.95",
                          "model.d_model = 128, model.n_heads = 4, optimizer.name = adamw",
                          "model.d_model = 128, model.n_heads = 4, optimizer.name = muon, optimizer.momentum = 0.9",
                          "model.d_model = 128, model.n_heads = 4, optimizer.name = muon, optimizer.momentum = 0.95"));
}

TEST_F(Sweep, RangesAreSpacedEqually) {
  EXPECT_THAT(values("[schedule]\nlearning_rate = {1e-4 .. 1e-2 log 3}\n"),
              ElementsAre("schedule.learning_rate = 0.0001", "schedule.learning_rate = 0.001",
                          "schedule.learning_rate = 0.01"));
  EXPECT_THAT(values("[model]\nn_layers = {2 .. 6 3}\n"),
              ElementsAre("model.n_layers = 2", "model.n_layers = 4", "model.n_layers = 6"));
}

TEST_F(Sweep, ListTakesOneValueOfEachKey) {
  EXPECT_THAT(values("[sweep]\nmethod = list\n[run]\nseed = {1, 2}\n[batch]\nglobal = {8, 16}\n"),
              ElementsAre("run.seed = 1, batch.global = 8", "run.seed = 2, batch.global = 16"));
}

// A further key, or more runs, do not change what is drawn; another seed does.
TEST_F(Sweep, DrawsDependOnSeedKeyAndNumberAlone) {
  const auto draws = [&](int runs, int seed, const std::string& more) {
    const SweepFile sweep = read(fmt::format(
        "[sweep]\nmethod = random\nruns = {}\nseed = {}\n[schedule]\nlearning_rate = {{1e-4 .. 1e-2 log}}\n{}", runs,
        seed, more));
    std::vector<std::string> values;
    for (const SweepRun& run : plan_sweep(sweep, "out")) values.push_back(*run.values[0]);
    return values;
  };
  const std::vector<std::string> four = draws(4, 1, "");
  EXPECT_EQ(std::set<std::string>(four.begin(), four.end()).size(), 4u);
  for (const std::string& value : four) EXPECT_TRUE(std::stod(value) >= 1e-4 && std::stod(value) <= 1e-2) << value;
  std::vector<std::string> eight = draws(8, 1, "weight_decay = {0.1, 0.2}\n");
  eight.resize(4);
  EXPECT_EQ(eight, four);
  EXPECT_NE(draws(4, 2, ""), four);
  EXPECT_THAT(refusal("[sweep]\nmethod = random\nruns = 3\n[run]\nseed = {1, 2}\n"),
              HasSubstr("there are not 3 different runs"));
}

TEST_F(Sweep, DeckHasTheValuesOfItsRun) {
  const SweepFile sweep = read("[data]\ntrain = a.txt,\n    b.txt ; both\n[run]\nseed = {1, 2}\nmax_steps = 3\n");
  const std::vector<SweepRun> runs = plan_sweep(sweep, "/o/runs");
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[1].name, "002");
  EXPECT_EQ(runs[1].deck, fmt::format("; run 002 of {}: run.seed = 2\n[run]\nname = 002\noutput = /o/runs\nseed = 2\n"
                                      "max_steps = 3\n[data]\ntrain = a.txt, b.txt\n",
                                      sweep.name));
}

TEST_F(Sweep, WhatIsWrongIsRefusedWithItsLine) {
  const std::string base = "[run]\nseed = {1, 2}\n";
  EXPECT_THAT(refusal("[run]\nseed = 1\n"), HasSubstr("no key has several values"));
  EXPECT_THAT(refusal(base + "max_steps = {1, 2\n"), HasSubstr("s.ini:3: run.max_steps: the values have no closing"));
  EXPECT_THAT(refusal(base + "max_steps = {}\n"), HasSubstr("no value between the braces"));
  EXPECT_THAT(refusal(base + "max_steps = {1 .. 9}\n"), HasSubstr("needs a number of values"));
  EXPECT_THAT(refusal(base + "max_steps = {9 .. 1 2}\n"), HasSubstr("the smaller one"));
  EXPECT_THAT(refusal(base + "max_steps = {0 .. 1 log 2}\n"), HasSubstr("above 0"));
  EXPECT_THAT(refusal(base + "max_steps = {1, 2} when it rains\n"), HasSubstr("'when it rains' follows the values"));
  EXPECT_THAT(refusal(base + "max_steps = {1, 2, 3} with run.seed\n"), HasSubstr("have as many values"));
  EXPECT_THAT(refusal(base + "max_steps = {1, 2} if run.seed = 3\n"), HasSubstr("run.seed is never 3"));
  EXPECT_THAT(refusal(base + "max_steps = {1, 2} if run.task = sft\n"), HasSubstr("run.task must be in the deck"));
  EXPECT_THAT(refusal(base + "name = x\n"), HasSubstr("names its runs"));
  EXPECT_THAT(refusal(base + "seed = 3\n"), HasSubstr("given twice"));
  EXPECT_THAT(refusal("[sweep]\nmetod = grid\n" + base), HasSubstr("s.ini:2: sweep.metod: unknown key"));
  EXPECT_THAT(refusal("[sweep]\nmethod = random\n" + base), HasSubstr("number of runs"));
  EXPECT_THAT(refusal("[sweep]\nmethod = list\n" + base + "max_steps = {1, 2, 3}\n"),
              HasSubstr("as many values of every"));
  EXPECT_EQ(refusal(base), "accepted") << "control";
}

}  // namespace
}  // namespace llmtrain
