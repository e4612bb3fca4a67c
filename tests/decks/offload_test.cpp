// State on a local disk: the same bytes in the ledger for all settings, nothing left behind, and failures of the disk
// end the run with 73 or 74.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

const DocumentsDeck deck{4, 3, 6, R"([evaluation]
every_steps = 2
[checkpoint]
every_steps = 1
keep = 100
[log]
parameter_hash_every_steps = 1
)"};

struct Setting {
  int ranks, zero;
  const char *optimizer, *parameters;
};
std::string text(const Setting& s) {
  return std::to_string(s.ranks) + " ranks, stage " + std::to_string(s.zero) + ", optimizer " + s.optimizer +
         ", parameters " + s.parameters;
}

class OffloadDeck : public RunFolder {
 protected:
  OffloadDeck() : RunFolder(text_of_documents(40), deck.text()) { std::filesystem::create_directory(disk()); }

  std::filesystem::path disk() const { return folder / "disk"; }
  std::string path_override() const { return "parallel.offload_path=" + disk().string(); }

  Outcome run(const std::string& name, const Setting& s, std::vector<std::string> overrides) {
    overrides.push_back("parallel.zero=" + std::to_string(s.zero));
    overrides.push_back("parallel.offload_optimizer=" + std::string(s.optimizer));
    overrides.push_back("parallel.offload_parameters=" + std::string(s.parameters));
    overrides.push_back(path_override());
    return start(name, s.ranks, overrides);
  }
  void expect_ledger(const std::string& expected, const std::string& name, const Setting& s,
                     const std::vector<std::string>& overrides) {
    const Outcome outcome = run(name, s, overrides);
    ASSERT_EQ(outcome.exit_code, 0) << text(s) << "\n" << outcome.output;
    EXPECT_EQ(ledger(name), expected) << text(s);
    EXPECT_EQ(std::filesystem::is_empty(disk()), true) << text(s);
  }
  /// Overrides of a run that only an error ends.
  std::string endless() const {
    return "run.max_steps=1000000 checkpoint.every_steps=0 evaluation.every_steps=0 parallel.offload_optimizer=nvme " +
           path_override();
  }
};

TEST_F(OffloadDeck, LedgersAreIdenticalWhereverTheStateLies) {
  for (const char* compute : {"fp32", "bf16"}) {
    const std::vector<std::string> overrides = {"precision.compute=" + std::string(compute)};
    const std::string name = compute;
    const Outcome resident = run(name, {1, 1, "none", "none"}, overrides);
    ASSERT_EQ(resident.exit_code, 0) << resident.output;
    int runs = 0;
    for (const Setting& s :
         {Setting{1, 0, "nvme", "none"}, Setting{1, 3, "nvme", "nvme"}, Setting{2, 1, "nvme", "none"},
          Setting{2, 2, "nvme", "none"}, Setting{3, 0, "nvme", "none"}, Setting{3, 3, "nvme", "nvme"},
          Setting{2, 3, "nvme", "none"}, Setting{2, 3, "none", "nvme"}, Setting{1, 1, "cpu", "none"}}) {
      expect_ledger(ledger(name), name + std::to_string(++runs), s, overrides);
    }
    const Outcome other = run(name + "other", {1, 1, "nvme", "none"}, {overrides[0], "optimizer.beta2=0.951"});
    ASSERT_EQ(other.exit_code, 0) << other.output;
    EXPECT_NE(ledger(name + "other"), ledger(name)) << "the smallest change of the update must show";
  }
}

TEST_F(OffloadDeck, RunsGoOnFromOneSettingInAnyOther) {
  const std::vector<std::string> overrides = {"precision.compute=bf16"};
  const Outcome resident = run("resident", {1, 1, "none", "none"}, overrides);
  ASSERT_EQ(resident.exit_code, 0) << resident.output;
  expect_ledger(ledger("resident"), "whole", {2, 1, "nvme", "none"}, overrides);
  cut_off("whole", "a", 1);
  expect_ledger(ledger("resident"), "a", {1, 2, "none", "none"}, overrides);
  cut_off("resident", "b", 2);
  expect_ledger(ledger("resident"), "b", {3, 3, "nvme", "nvme"}, overrides);
  cut_off("b", "c", 3);
  expect_ledger(ledger("resident"), "c", {2, 0, "nvme", "none"}, overrides);
}

TEST_F(OffloadDeck, PublishedWeightsGoToTheDisk) {
  ASSERT_EQ(run("made", {1, 1, "none", "none"}, {"precision.compute=bf16", "checkpoint.export=last"}).exit_code, 0);
  const std::vector<std::string> overrides = {"precision.compute=bf16", "run.max_steps=2",
                                              "model.path=" + (folder / "made/export").string()};
  const Outcome resident = run("from", {1, 1, "none", "none"}, overrides);
  ASSERT_EQ(resident.exit_code, 0) << resident.output;
  expect_ledger(ledger("from"), "from1", {2, 0, "nvme", "none"}, overrides);
  expect_ledger(ledger("from"), "from2", {2, 3, "nvme", "nvme"}, overrides);
}

TEST_F(OffloadDeck, TwoJobsShareAFolder) {
  const std::string overrides = "parallel.offload_optimizer=nvme " + path_override();
  const Outcome both =
      shell(command("one", 1, overrides) + " & " + command("two", 2, overrides) + "; code=$?; wait $! && exit $code");
  ASSERT_EQ(both.exit_code, 0) << both.output;
  EXPECT_EQ(ledger("one"), ledger("two"));
  EXPECT_TRUE(std::filesystem::is_empty(disk()));
}

TEST_F(OffloadDeck, WaitingForTheDiskIsARowOfTheProfile) {
  const Outcome outcome = run("profile", {1, 3, "nvme", "nvme"}, {"precision.compute=bf16", "log.profile=2"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("wait for offloaded state"));
  EXPECT_THAT(outcome.output, HasSubstr("wait for offloaded weights"));
}

TEST_F(OffloadDeck, WhatTheDiskChangesIsFound) {
  const std::string write = "for f in /proc/$(pid 0)/fd/*; do case \"$(readlink $f)\" in " + disk().string() +
                            "/*) printf 'not what was written' | dd of=$f bs=1 seek=300 conv=notrunc; esac; done";
  const std::string until_it_ends =
      "for i in $(seq 3000); do kill -0 $(pid 0) || break; " + write + "; sleep 0.02; done 2>/dev/null";
  const Outcome outcome = start_and("hurt", 1, lines_in_ledger(3), until_it_ends, endless());
  EXPECT_EQ(outcome.exit_code, 74) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr(disk().string()));
  EXPECT_THAT(outcome.output, HasSubstr("was corrupted on the disk"));
  EXPECT_TRUE(std::filesystem::is_empty(disk()));
}

TEST_F(OffloadDeck, WhatCannotBeReadEndsTheRun) {
  const std::string cut = "for f in /proc/$(pid 1)/fd/*; do case \"$(readlink $f)\" in " + disk().string() +
                          "/*) truncate -s 0 $f; esac; done";
  const Outcome outcome = start_and("cut", 2, lines_in_ledger(3), cut, endless());
  EXPECT_EQ(outcome.exit_code, 74) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr(disk().string()));
}

#ifdef LLMTRAIN_FAULT_INJECTION
TEST_F(OffloadDeck, WhatCannotBeWrittenEndsTheRun) {
  const std::string faults = "LD_PRELOAD=" + programs::fault_library +
                             " LLMTRAIN_FAULT_CALLS=write LLMTRAIN_FAULT_AT=40 LLMTRAIN_FAULT_HOW=eio "
                             "LLMTRAIN_FAULT_PATH=";
  const Outcome outcome = shell(faults + disk().string() + " " + command("broken", 1, endless()));
  EXPECT_EQ(outcome.exit_code, 74) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr(disk().string()));
  EXPECT_THAT(outcome.output, HasSubstr("failed: Input/output error"));
}
#endif

TEST_F(OffloadDeck, ADiskThatIsTooSmallIsSeenAtTheStart) {
  const auto with = [&](const std::string& size) {
    return "unshare --mount sh -c 'mount -t tmpfs -o size=" + size + " none " + disk().string() +
           R"( && exec "$0" "$@"' )";
  };
  if (shell(with("64k") + "true").exit_code != 0) GTEST_SKIP() << "nothing can be mounted here";
  const std::string overrides = "parallel.offload_optimizer=nvme " + path_override();
  for (const int ranks : {1, 2}) {
    const Outcome full = shell(with("64k") + command("full", ranks, overrides));
    EXPECT_EQ(full.exit_code, 74) << full.output;
    const std::string message = disk().string() + ": the disk is full: the offloaded state needs ";
    EXPECT_THAT(full.output, HasSubstr("command line: parallel.offload_path: " + message));
    EXPECT_EQ(full.output.find(message), full.output.rfind(message)) << "one message: " << full.output;
    EXPECT_FALSE(std::filesystem::exists(folder / "full/ledger.jsonl"));
  }
  const Outcome check = shell(with("64k") + command("full", 1, overrides + " --check"));
  EXPECT_EQ(check.exit_code, 74) << check.output;
  EXPECT_THAT(check.output, HasSubstr("parallel.offload_path"));
  const Outcome enough = shell(with("16m") + command("enough", 2, overrides));
  EXPECT_EQ(enough.exit_code, 0) << enough.output;
  EXPECT_THAT(enough.output, HasSubstr("is in memory (tmpfs)"));
}

TEST_F(OffloadDeck, SettingsThatCannotBeAreErrors) {
  const auto expect = [&](int code, const std::vector<std::string>& overrides, const std::vector<std::string>& parts) {
    const Outcome outcome = start("wrong", 1, overrides);
    EXPECT_EQ(outcome.exit_code, code) << outcome.output;
    for (const std::string& part : parts) EXPECT_THAT(outcome.output, HasSubstr(part));
  };
  expect(78, {"parallel.offload_parameters=nvme", path_override()},
         {"parallel.offload_parameters", "needs parallel.zero = 3"});
  expect(78, {"parallel.offload_optimizer=nvme"}, {"parallel.offload_path", "is required with nvme"});
  expect(78, {"parallel.offload_optimizer=disk"}, {"parallel.offload_optimizer", "nvme"});
  for (const char* option : {"log.every_steps=1", "--check"}) {
    expect(73, {"parallel.offload_optimizer=nvme", "parallel.offload_path=/nowhere/at/all", option},
           {"parallel.offload_path: /nowhere/at/all: the folder does not exist"});
    expect(73, {"parallel.offload_optimizer=nvme", "parallel.offload_path=/proc", option},
           {"parallel.offload_path: /proc"});
    expect(73, {"parallel.offload_optimizer=nvme", "parallel.offload_path=" + (folder / "text.txt").string(), option},
           {"text.txt: the folder does not exist"});
  }
  EXPECT_THAT(start("cpu", 1, {"parallel.offload_optimizer=cpu"}).output, HasSubstr("cpu has no effect here"));
  EXPECT_THAT(start("unused", 1, {"parallel.offload_path=/nowhere"}).output, HasSubstr("no effect without"));
}

/// Bytes of one rank by --estimate, and as measured by a run, libraries included.
struct Memory {
  double planned, measured;
};

class OffloadMemory : public OffloadDeck {
 protected:
  Memory of(const std::string& name, const std::vector<std::string>& settings) {
    std::vector<std::string> arguments = {(source_folder() / "inputs/medium.ini").string(),
                                          "run.output=" + folder.text(),
                                          "run.name=" + name,
                                          "run.max_steps=2",
                                          "model.n_layers=1",
                                          "batch.micro=1",
                                          "batch.global=1",
                                          "batch.sequence_length=128",
                                          "evaluation.at_end=false",
                                          "checkpoint.every_steps=0",
                                          "checkpoint.at_end=false",
                                          "log.every_steps=1",
                                          "log.samples_every_steps=0",
                                          path_override()};
    arguments.insert(arguments.end(), settings.begin(), settings.end());
    const Outcome run = llmtrain({1, 1, arguments});
    EXPECT_EQ(run.exit_code, 0) << run.output;
    const std::string metrics = read_file(folder / (name + "/metrics.jsonl"));
    const auto last = nlohmann::json::parse(metrics.substr(metrics.rfind('\n', metrics.size() - 2) + 1));
    arguments.insert(arguments.end(), {"--estimate", "--json"});
    const Outcome estimate = llmtrain({1, 1, arguments});
    EXPECT_EQ(estimate.exit_code, 0) << estimate.output;
    const auto j = nlohmann::json::parse(estimate.output.substr(estimate.output.find('{')));
    EXPECT_EQ(j["offloaded_bytes_per_rank"].get<double>() > 0, settings[0].ends_with("nvme")) << estimate.output;
    return {j["bytes_per_rank"]["total"].get<double>(), last["memory"].get<double>()};
  }
};

TEST_F(OffloadMemory, FallsAsEstimated) {
  if (std::string(LLMTRAIN_SANITIZED) == "yes") GTEST_SKIP() << "the sanitizers' own memory is not in the estimate";
  const Memory resident = of("resident", {"parallel.offload_optimizer=none"});
  const Memory offloaded = of("offloaded", {"parallel.offload_optimizer=nvme"});
  EXPECT_LT(offloaded.planned, 0.8 * resident.planned);
  EXPECT_NEAR((resident.measured - offloaded.measured) / (resident.planned - offloaded.planned), 1, 0.05);
}

}  // namespace
}  // namespace llmtrain::test
