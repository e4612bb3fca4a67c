// Use of a GPU in training: synchronizations of the host, and passes as graphs. On an emulated GPU, whose streams do
// nothing before the host waits for them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "core/error.hpp"
#include "core/stop_request.hpp"
#include "emulator/cuda_runtime.h"
#include "emulator/emulator.hpp"
#include "emulator/limits.hpp"
#include "harness/harness.hpp"
#include "harness/temporary_folder.hpp"
#include "parallel/job/runtime.hpp"
#include "tasks/estimate/memory_limit.hpp"
#include "tasks/program.hpp"
#include "train/step_hook.hpp"

namespace llmtrain {
namespace {

constexpr const char* deck_text = R"(
[run]
max_steps = 10
[model]
family = llama
d_model = 16
n_layers = 1
n_heads = 2
n_kv_heads = 1
[data]
tokenizer = char
packing = wrap
cross_document_attention = true
[batch]
sequence_length = 16
micro = 2
global = 4
[precision]
compute = bf16
[evaluation]
every_steps = 0
at_end = false
[checkpoint]
every_steps = 0
at_end = false
[log]
every_steps = 1
[watchdog]
enabled = false
)";
constexpr size_t warm = 4;  ///< shapes are new, buffers grow

/// Runs at the end of each step's passes.
std::vector<emulator::Counts> seen;
/// Steps of the data whose gradients contain an infinity.
std::set<int64_t> poisoned;
int64_t stop_in = -1;  ///< step in which a stop is requested
int64_t slow_in = -1;  ///< step in which the GPU is busy for a while
constexpr auto slowness = std::chrono::milliseconds(3000);
void see_step(const StepUnderWay& step) {
  seen.push_back(emulator::counts());
  if (step.step == stop_in) request_stop(SIGUSR1);
  if (step.step == slow_in) {
    const auto stream = static_cast<cudaStream_t>(test::runtime().stream().native());
    cudaLaunchHostFunc(
        stream, [](void*) { std::this_thread::sleep_for(slowness); }, nullptr);
  }
  if (!poisoned.contains(step.data_step)) return;
  const float infinity = std::numeric_limits<float>::infinity();
  Stream& stream = test::runtime().stream();
  copy_to_device(step.params.shard(0, 0).gradient.data, &infinity, sizeof infinity, stream);
  stream.synchronize();
}

struct Result {
  std::string ledger, log, metrics;
  std::vector<emulator::Counts> steps;  ///< differences from one step to the next, without the first ones
};

class DeviceSteps : public ::testing::Test {
 protected:
  DeviceSteps() {
    std::ofstream text(folder_ / "text.txt");
    for (int i = 0; i < 400; ++i) {
      text << "Line " << i * i % 71 << (i % 3 == 0 ? " is short.\n\n" : " has some words to train on.\n\n");
    }
    std::ofstream(folder_ / "deck.ini") << deck_text;
    std::string adapters = deck_text;
    const size_t model = adapters.find("family"), data = adapters.find("[data]");
    adapters.replace(model, data - model, "path = tests/reference/hf/llama\n");
    adapters.insert(adapters.find("[run]\n") + 6, "finetuning = lora\n");
    std::ofstream(folder_ / "lora.ini") << "[lora]\nr = 4\n" << adapters;
  }

  Result run(const std::string& name, const std::vector<std::string>& overrides, int expected_code = 0) {
    request_stop(0);
    CommandLine command;
    command.deck = (folder_ / deck_).string();
    command.overrides = {"run.name=" + name, "run.output=" + folder_.text(), "data.cache=" + folder_.text() + "/cache",
                         "data.train=" + folder_.text() + "/text.txt"};
    command.overrides.insert(command.overrides.end(), overrides.begin(), overrides.end());
    seen.clear();
    step_hook = see_step;
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    int code = -1;
    std::string error;
    try {
      code = run_program(command, test::runtime());
    } catch (const UserError& user_error) {
      error = user_error.what();
    }
    testing::internal::GetCapturedStdout();
    testing::internal::GetCapturedStderr();
    step_hook = nullptr;
    EXPECT_EQ(code, expected_code) << error;
    Result result{read(name, "ledger.jsonl"), read(name, "log.txt"), read(name, "metrics.jsonl"), {}};
    for (size_t i = warm; i < seen.size(); ++i) {
      result.steps.push_back({seen[i].launches - seen[i - 1].launches, seen[i].allocations - seen[i - 1].allocations,
                              seen[i].synchronizations - seen[i - 1].synchronizations,
                              seen[i].idle_waits - seen[i - 1].idle_waits,
                              seen[i].pageable_copies - seen[i - 1].pageable_copies});
    }
    return result;
  }

 private:
  std::string read(const std::string& name, const std::string& file) const {
    std::ostringstream text;
    text << std::ifstream(folder_ / name / file, std::ios::binary).rdbuf();
    return text.str();
  }
  test::TemporaryFolder folder_;

 protected:
  std::string deck_ = "deck.ini";  ///< or lora.ini
  int number_ = 0, refusals_ = 0;
};

// The host waits for values of the previous step, and for batches that were uploaded long ago, while the GPU has work.
TEST_F(DeviceSteps, NeverLeaveTheGpuWithoutWorkAndAllocateNothing) {
  for (const char* graphs : {"parallel.cuda_graphs=true", "parallel.cuda_graphs=false"}) {
    const Result result = run(std::string("waits") + graphs[21], {graphs});
    ASSERT_EQ(result.steps.size(), 6U);
    for (const emulator::Counts& step : result.steps) {
      EXPECT_EQ(step.synchronizations, 0) << graphs << ": none for all that a stream holds";
      EXPECT_EQ(step.idle_waits, 0) << graphs;
      EXPECT_EQ(step.pageable_copies, 0) << graphs << ": they wait, too";
      EXPECT_EQ(step.allocations, 0) << graphs;
      EXPECT_GT(step.launches, 0) << graphs;
    }
  }
  // If the host decides it waits once; for a hash of the parameters it reads them.
  for (const char* host : {"divergence.spike_z_score=1e9", "precision.compute=fp16"}) {
    for (const emulator::Counts& step : run(std::string("host") + host[0], {host}).steps) {
      EXPECT_EQ(step.synchronizations, 1) << host;
      EXPECT_EQ(step.idle_waits, 1) << host;
    }
  }
  const Result hashed = run("hashed", {"log.parameter_hash_every_steps=1"});
  for (const emulator::Counts& step : hashed.steps) EXPECT_GT(step.synchronizations + step.pageable_copies, 1);
}

// One after a good one, two in a row, and three: then the run rolls back and skips data.
TEST_F(DeviceSteps, BadOnesAreTheSameWhoeverDecides) {
  const std::vector<std::string> common = {"run.max_steps=16",           "checkpoint.every_steps=4",
                                           "divergence.max_bad_steps=3", "divergence.skip_steps=4",
                                           "evaluation.every_steps=6",   "optimizer.max_grad_norm=0.25"};
  const auto ledger = [&](const std::string& name, const std::set<int64_t>& bad, const std::string& more, int code) {
    poisoned = bad;
    std::vector<std::string> settings = common;
    settings.push_back(more);
    const Result result = run(name, settings, code);
    poisoned.clear();
    return result.ledger;
  };
  const std::string by_host = "divergence.spike_z_score=1e9", by_device = "divergence.spike_z_score=0";
  const std::string other = ledger("other", {4}, by_device, 0);
  EXPECT_THAT(other, testing::HasSubstr("\"step\":16,"));
  for (const std::set<int64_t>& bad : {std::set<int64_t>{2, 5, 6}, {9, 10, 11}, {0, 1, 2}}) {
    SCOPED_TRACE(testing::PrintToString(bad));
    const int code = bad.contains(0) ? -1 : 0;  // there is no checkpoint to go back to
    const std::string name = std::to_string(number_++), expected = ledger("host" + name, bad, by_host, code);
    EXPECT_EQ(ledger("device" + name, bad, by_device, code), expected);
    EXPECT_NE(other, expected) << "control";
  }
}

// After a step whose values the host has not read, good or bad, and between bad ones.
TEST_F(DeviceSteps, StoppedBehindAnyTheRunGoesOn) {
  const std::vector<std::string> settings = {"run.max_steps=16", "checkpoint.every_steps=4", "divergence.skip_steps=2"};
  for (const std::set<int64_t>& bad : {std::set<int64_t>{6}, {5, 6, 7}}) {
    SCOPED_TRACE(testing::PrintToString(bad));
    poisoned = bad;
    const std::string name = std::to_string(number_++), whole = run("whole" + name, settings).ledger;
    for (const int64_t step : {bad.size() == 1 ? 3 : 5, 7, 15}) {
      SCOPED_TRACE(step);
      const std::string cut = "cut" + name + "-" + std::to_string(step);
      stop_in = step;
      EXPECT_EQ(whole.find(run(cut, settings, step == 15 ? 0 : 75).ledger), 0U);
      stop_in = -1;
      if (step < 15) {
        EXPECT_EQ(run(cut, settings).ledger, whole);
      }
    }
  }
  poisoned.clear();
}

// Time that a step waits for the previous one does not count as its own.
TEST_F(DeviceSteps, TimesOfPhasesAreThoseOfTheirStep) {
  constexpr int64_t slow_step = 5;
  constexpr double slow = std::chrono::duration<double>(slowness).count();
  for (const char* graphs : {"parallel.cuda_graphs=true", "parallel.cuda_graphs=false"}) {
    slow_in = slow_step;
    std::istringstream lines(run(std::string("times") + graphs[21], {graphs, "evaluation.every_steps=4"}).metrics);
    slow_in = -1;
    int64_t steps = 0;
    for (std::string line; std::getline(lines, line);) {
      const nlohmann::json record = nlohmann::json::parse(line);
      if (!record.contains("seconds") || !record["seconds"].is_object()) continue;
      const nlohmann::json& seconds = record["seconds"];
      const double passes = seconds["forward_backward"], reduction = seconds["reduction"], whole = seconds["step"];
      SCOPED_TRACE(line);
      EXPECT_LT(reduction, slow / 2);
      EXPECT_GT(passes, 0);
      EXPECT_LE(passes + reduction + double{seconds["data"]} + double{seconds["optimizer"]}, whole * 1.000001);
      if (++steps == slow_step + 1) {
        EXPECT_GT(passes, slow);
      } else {
        EXPECT_LT(passes, slow);
      }
    }
    EXPECT_EQ(steps, 10);
  }
}

// State is copied and, if it exceeds the copy, read in the background. Not copied in this way: for each unit the hash
// of its parameters, and whether they and both moments are finite.
TEST_F(DeviceSteps, CheckpointsAreCopiedThroughPinnedMemory) {
  for (const char* width : {"model.d_model=32", "model.d_model=96"}) {
    const auto copies = [&](const std::string& more) {
      int64_t count = 0;
      const Result result = run(more + width, {"run.max_steps=6", width, more, "checkpoint.buffer=1048576"});
      EXPECT_EQ(result.steps.size(), 2U);
      for (const emulator::Counts& step : result.steps) count += step.pageable_copies;
      return count;
    };
    EXPECT_EQ(copies("checkpoint.every_steps=1"), 4 * copies("log.parameter_hash_every_steps=1")) << width;
  }
}

TEST_F(DeviceSteps, GraphsAreTheSameWorkAndTheSameBits) {
  for (const std::vector<std::string>& settings : {std::vector<std::string>{},
                                                   {"parallel.reduction_groups=1"},
                                                   {"batch.global=8", "parallel.reduction_blocks=2"},
                                                   {"precision.compute=fp32", "memory.recompute=block"},
                                                   {"model.tie_embeddings=true", "parallel.zero=0"}}) {
    SCOPED_TRACE(testing::PrintToString(settings));
    const std::string name = std::to_string(number_++);
    std::vector<std::string> plainly = settings, otherwise = settings;
    plainly.emplace_back("parallel.cuda_graphs=false");
    otherwise.emplace_back("run.seed=43");
    const Result graphs = run("graphs" + name, settings), plain = run("plain" + name, plainly);
    EXPECT_NE(graphs.ledger, "");
    EXPECT_EQ(graphs.ledger, plain.ledger);
    EXPECT_NE(graphs.ledger, run("other" + name, otherwise).ledger) << "control";
    ASSERT_EQ(graphs.steps.size(), plain.steps.size());
    // And one that keeps the step for the keys of dropout.
    for (size_t i = 0; i < graphs.steps.size(); ++i) EXPECT_EQ(graphs.steps[i].launches, plain.steps[i].launches + 1);
    EXPECT_THAT(graphs.log, testing::ContainsRegex("graphs     [1-9][0-9]* recorded; [0-9]+ of [0-9]+ passes"));
    EXPECT_THAT(plain.log, testing::HasSubstr("graphs     none: parallel.cuda_graphs is off"));
  }
}

// A launched graph draws the masks of its own step, also after a resume.
TEST_F(DeviceSteps, GraphsDrawTheMasksOfTheirStep) {
  using Settings = std::vector<std::string>;
  const std::vector<std::pair<std::string, Settings>> kinds = {
      {"deck.ini", {"model.attention_dropout=0.3", "memory.recompute=block"}},
      {"deck.ini", {"model.dropout=0.3", "model.attention_dropout=0.3", "precision.compute=fp32"}},
      {"lora.ini", {"lora.dropout=0.3", "lora.dora=true", "model.dropout=0.2"}}};
  Settings settings;
  const auto with = [&](const std::string& more) {
    Settings all = settings;
    all.insert(all.end(), {"run.max_steps=6", "schedule.learning_rate=0.01", "log.parameter_hash_every_steps=1", more});
    return all;
  };
  std::string plain;
  for (const auto& [deck, dropout] : kinds) {
    SCOPED_TRACE(deck + testing::PrintToString(dropout));
    deck_ = deck, settings = dropout;
    const std::string name = std::to_string(number_++);
    plain = run("plain" + name, with("parallel.cuda_graphs=false")).ledger;
    EXPECT_THAT(plain, testing::HasSubstr("\"step\":6,"));
    const Result graphs = run("graphs" + name, with("parallel.cuda_graphs=true"));
    EXPECT_THAT(graphs.log, testing::ContainsRegex("graphs     [1-9] recorded; ([6-9]|10) of 12 passes"));
    EXPECT_EQ(graphs.ledger, plain);
    EXPECT_NE(run("seed" + name, with("run.seed=43")).ledger, plain) << "control";
  }
  stop_in = 2;
  EXPECT_EQ(plain.find(run("cut", with("parallel.cuda_graphs=true"), 75).ledger), 0U);
  stop_in = -1;
  EXPECT_EQ(run("cut", with("parallel.cuda_graphs=true")).ledger, plain) << "resumed";
}

// Shapes that change from batch to batch: some are recorded, and none is confused with another.
TEST_F(DeviceSteps, ShapesHaveGraphsOfTheirOwn) {
  std::vector<std::string> settings = {"data.packing=none", "data.document_separator=blank_line", "batch.micro=1",
                                       "run.max_steps=10"};
  const Result graphs = run("graphs", settings);
  settings.emplace_back("parallel.cuda_graphs=false");
  const Result plain = run("plain", settings);
  EXPECT_NE(graphs.ledger, "");
  EXPECT_THAT(graphs.log, testing::ContainsRegex("graphs     [2-9] recorded; [0-9]+ of [0-9]+ passes"));
  EXPECT_EQ(graphs.ledger, plain.ledger);
}

// Graphs that the driver refuses, or for which there is no memory: their passes run without them.
TEST_F(DeviceSteps, GraphsThatAreNotMadeChangeNothing) {
  for (const std::vector<std::string>& settings :
       {std::vector<std::string>{"batch.global=8", "parallel.reduction_blocks=2"}, {"parallel.reduction_groups=1"}}) {
    const std::string name = std::to_string(number_++);
    const Result all = run("all" + name, settings);
    EXPECT_THAT(all.log, testing::Not(testing::HasSubstr("no more are recorded"))) << "control";
    EXPECT_NE(all.ledger, "");
    for (int64_t seed = 0; seed < 2; ++seed) {
      const emulator::ScopedSetting refusals("LLMTRAIN_EMULATOR_REFUSALS", seed);
      const int64_t before = emulator::refusals();
      const Result refused = run("refused" + name + std::to_string(seed), settings);
      EXPECT_EQ(refused.ledger, all.ledger) << seed;
      const bool said = refused.log.find("the driver has no memory for one more") != std::string::npos;
      EXPECT_EQ(said, emulator::refusals() > before) << refused.log;
      refusals_ += said ? 1 : 0;
    }
    const DeviceMemory memory = device_memory();
    for (const auto& [node, text] : {std::pair(int64_t{3} << 20, "128.0 MiB must stay free"),
                                     {int64_t{64} << 20, "the driver has no memory for one more"}}) {
      const emulator::ScopedSetting bytes("LLMTRAIN_EMULATOR_GRAPH_NODE", node);
      // What a run asks for, the 256 MiB that it leaves free among it.
      const emulator::ScopedSetting little("LLMTRAIN_EMULATOR_MEMORY",
                                           memory.total - memory.available + (int64_t{330} << 20));
      const Result limited = run("limited" + name + std::to_string(node), settings);
      EXPECT_EQ(limited.ledger, all.ledger);
      EXPECT_THAT(limited.log, testing::HasSubstr(text));
    }
  }
  EXPECT_GT(refusals_, 0);
}

TEST_F(DeviceSteps, WhatCannotBeAGraphSaysSo) {
  EXPECT_THAT(run("stage3", {"parallel.zero=3"}).log,
              testing::HasSubstr("graphs     none: the passes communicate weights or gradients"));
}

// Offloaded state lies in memory that the node must have.
TEST(HostMemoryOfGpuRuns, IsHeldAgainstTheNode) {
  EXPECT_NO_THROW(check_host_memory(int64_t{1} << 20, test::runtime().communicator()));
  try {
    check_host_memory(int64_t{1} << 60, test::runtime().communicator());
    ADD_FAILURE() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::deck);
    EXPECT_THAT(error.what(), testing::HasSubstr("share of the node"));
  }
}

}  // namespace
}  // namespace llmtrain
