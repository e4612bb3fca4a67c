// No part of a step allocates, touches fresh memory or starts a thread: not the passes, the exchange, the next batch or
// the log. The system may reclaim a page now and then, and a thread in the background may wake up: so the median step
// counts.

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>
#include <vector>

#include "decks/program.hpp"

#ifdef LLMTRAIN_FAULT_INJECTION

namespace llmtrain::test {
namespace {

struct Counts {
  int64_t allocations = -1, faults = -1, threads = -1;
  int64_t own = -1;  ///< allocations that are not MPI's
};

constexpr size_t warm_steps = 4;  ///< kernels are created, buffers grow

/// Medians over the steps of one rank.
Counts median_step(const std::string& text) {
  std::vector<int64_t> all[4];
  std::istringstream lines(text);
  int64_t counts[4];
  for (size_t line = 0; lines >> counts[0] >> counts[1] >> counts[2] >> counts[3]; ++line) {
    for (size_t i = 0; i < 4 && line >= warm_steps; ++i) all[i].push_back(counts[i]);
  }
  EXPECT_GE(all[0].size(), 10U) << text;
  for (std::vector<int64_t>& column : all) std::ranges::sort(column);
  const auto median = [](const std::vector<int64_t>& v) { return v.empty() ? -1 : v[v.size() / 2]; };
  return {median(all[0]), median(all[1]), median(all[2]), median(all[3])};
}

/// Counts of every rank.
std::vector<Counts> counted(const Launch& layout, const std::string& does) {
  const TemporaryFolder folder;
  Launch launch = layout;
  const std::vector<std::string> settings = {"run.output=" + folder.text(),
                                             "run.name=a",
                                             "run.max_steps=20",
                                             "model.d_model=48",
                                             "model.n_layers=2",
                                             "data.packing=wrap",
                                             "data.cache=" + (folder / "cache").string(),
                                             "batch.sequence_length=64",
                                             "precision.compute=bf16",
                                             "watchdog.enabled=false",
                                             "evaluation.every_steps=0",
                                             "evaluation.at_end=false",
                                             "checkpoint.every_steps=0",
                                             "checkpoint.at_end=false",
                                             "log.every_steps=0",
                                             "log.samples_every_steps=0"};
  launch.arguments.insert(launch.arguments.begin(), (source_folder() / "inputs/quickstart.ini").string());
  launch.arguments.insert(launch.arguments.begin() + 1, settings.begin(), settings.end());
  launch.program = programs::counted;
  launch.environment +=
      " LLMTRAIN_TEST_COUNTS='" + (folder / "counts").string() + "' LLMTRAIN_TEST_DOES='" + does + "'";
  const Outcome outcome = llmtrain(launch);
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  std::vector<Counts> ranks;
  ranks.reserve(static_cast<size_t>(launch.ranks));
  for (int rank = 0; rank < launch.ranks; ++rank) {
    ranks.push_back(median_step(read_file(folder / ("counts." + std::to_string(rank)))));
  }
  return ranks;
}

TEST(QuietStep, OneRankDoesNothingButTheStep) {
  for (const int threads : {1, 2}) {
    const Counts counts = counted({1, threads, {"log.parameter_hash_every_steps=1"}}, "").front();
    EXPECT_EQ(counts.allocations, 0) << threads << " threads";
    EXPECT_EQ(counts.faults, 0) << threads << " threads";
    EXPECT_EQ(counts.threads, 0) << threads << " threads";
  }
}

TEST(QuietStep, NorDoesOneOfFreezeTuning) {
  const std::vector<std::string> freeze = {"log.parameter_hash_every_steps=1", "run.finetuning=freeze",
                                           "freeze.trainable_layers=1", "freeze.trainable_modules=mlp",
                                           "memory.recompute=block"};
  const Counts counts = counted({1, 1, freeze}, "").front();
  EXPECT_EQ(counts.allocations, 0);
  EXPECT_EQ(counts.faults, 0);
  for (const Counts& of_rank : counted({2, 1, {freeze[1], freeze[2], freeze[3], "parallel.zero=3"}}, "")) {
    EXPECT_EQ(of_rank.own, 0);
    EXPECT_EQ(of_rank.faults, 0);
  }
}

TEST(QuietStep, NorDoesOneThatStreamsItsStateFromADisk) {
  const TemporaryFolder disk;
  const std::string path = "parallel.offload_path=" + disk.text();
  const std::vector<std::string> optimizer = {"parallel.offload_optimizer=nvme", path};
  const std::vector<std::string> all = {"parallel.offload_optimizer=nvme", "parallel.offload_parameters=nvme",
                                        "parallel.zero=3", path};
  for (const auto& settings : {optimizer, all}) {
    const Counts counts = counted({1, 1, settings}, "").front();
    EXPECT_EQ(counts.allocations, 0) << settings.size() << " settings";
    EXPECT_EQ(counts.faults, 0) << settings.size() << " settings";
    EXPECT_EQ(counts.threads, 0) << settings.size() << " settings";
  }
}

// MPI may allocate; tested with accumulation, and with messages instead of shared memory.
TEST(QuietStep, RanksAllocateNothingThemselvesTouchNoFreshMemoryAndStartNoThread) {
  for (const char* environment : {"", "LLMTRAIN_RANKS_PER_NODE=1"}) {
    for (const char* zero : {"parallel.zero=1", "parallel.zero=3"}) {
      const Launch launch{2, 1, {zero, "batch.micro=2", "batch.global=8"}, "", environment};
      for (const Counts& counts : counted(launch, "")) {
        EXPECT_EQ(counts.own, 0) << zero << environment;
        EXPECT_EQ(counts.threads, 0) << zero << environment;
        EXPECT_EQ(counts.faults, 0) << zero << environment;
      }
    }
  }
}

TEST(QuietStep, WhatAStepShouldNotDoIsSeen) {
  const Counts allocates = counted({}, "allocate").front();
  EXPECT_GE(allocates.allocations, 1);
  EXPECT_GE(allocates.own, 1);
  EXPECT_EQ(allocates.faults + allocates.threads, 0);
  const Counts touches = counted({}, "touch").front();
  EXPECT_GE(touches.faults, 1);
  EXPECT_EQ(touches.allocations + touches.threads, 0);
  EXPECT_GE(counted({}, "start").front().threads, 1);
}

}  // namespace
}  // namespace llmtrain::test

#endif
