// An interrupted run resumes as if it had not been interrupted: not one byte of the ledger may depend on when, by what,
// or on how many ranks.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "decks/run_folder.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

/// With evaluations, and epochs that end within the run.
const DocumentsDeck deck{12, 2, 10, R"([precision]
compute = fp32
[evaluation]
every_steps = 3
[checkpoint]
every_steps = 1
keep = 100
[log]
every_steps = 4
)"};

class Resume : public RunFolder {
 protected:
  Resume() : RunFolder(text_of_documents(40), deck.text()) {}
  Outcome run(const std::string& name, int ranks = 1, const std::vector<std::string>& overrides = {}, int threads = 1) {
    return start(name, ranks, overrides, "", threads);
  }
  void run_to_end(const std::string& name, int ranks = 1, const std::vector<std::string>& overrides = {}) {
    const Outcome outcome = run(name, ranks, overrides);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  }
  /// Lines of metrics.jsonl, without times and marks of resumption.
  std::vector<std::string> metrics(const std::string& name) const {
    std::vector<std::string> lines;
    std::istringstream text(read_file(folder / (name + "/metrics.jsonl")));
    for (std::string line; std::getline(text, line);) {
      nlohmann::json json = nlohmann::json::parse(line);
      if (json.contains("resumed_from_step")) continue;
      for (const char* key : {"wall_time", "tokens_per_second", "flops_per_second", "seconds", "ranks", "memory",
                              "memory_libraries", "memory_planned", "samples_per_second"}) {
        json.erase(key);
      }
      for (auto value = json.begin(); value != json.end();) {  // of nodes and ranks
        const bool measured = value.key().starts_with("ranks/") || value.key().starts_with("system/") ||
                              value.key().starts_with("traffic/");
        value = measured ? json.erase(value) : std::next(value);
      }
      lines.push_back(json.dump());
    }
    return lines;
  }
  /// Sizes of /train and /validation in metrics.h5, which come first.
  std::string metrics_rows(const std::string& name) const {
    const Outcome shown = llmtool({"inspect", (folder / (name + "/metrics.h5")).string()});
    EXPECT_EQ(shown.exit_code, 0) << shown.output;
    std::string rows;
    std::istringstream text(shown.output);
    for (std::string line; std::getline(text, line) && line != "/system" && line != "/ranks" && line != "/traffic";) {
      std::istringstream words(line);
      std::string column, count, first, last;
      words >> column >> count >> first >> last;
      if (column != "step" && column != "loss_mean") continue;
      for (const std::string& word : {column, count, first, last}) rows.append(word).append(" ");
    }
    return rows;
  }
};

TEST_F(Resume, AtEveryStepOnAnyRanksStagesAndThreads) {
  run_to_end("whole", 4);
  run_to_end("rare", 1, {"checkpoint.every_steps=5", "log.parameter_hash_every_steps=1"});
  const std::string expected = ledger("whole");
  EXPECT_EQ(ledger("rare"), expected) << "saving changes nothing";
  const auto lines = metrics("whole");
  const std::string rows = metrics_rows("whole");
  EXPECT_THAT(rows, HasSubstr("loss_mean 4 "));
  for (int k = 1; k <= 12; ++k) {
    const int ranks[] = {1, 2, 3, 4, 6};
    cut_off("whole", "cut", k);
    const Outcome outcome =
        run("cut", ranks[k % 5], {"parallel.zero=" + std::to_string(k * 7 % 4)}, ranks[k % 5] == 1 ? 2 : 1);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(step_name(k) + ", step " + std::to_string(k) + ", written by 4 ranks"));
    EXPECT_EQ(ledger("cut"), expected) << "from step " << k;
    EXPECT_EQ(metrics("cut"), lines) << "from step " << k;
    EXPECT_EQ(metrics_rows("cut"), rows) << "from step " << k;
  }
}

TEST_F(Resume, AndDiffersWhereTheStateDiffers) {
  run_to_end("whole", 2);
  const std::string expected = ledger("whole");
  for (const std::string change : {"optimizer.beta1=0.8999", "schedule.learning_rate=3.0001e-3", "model.dropout=0"}) {
    cut_off("whole", "cut", 5);
    const Outcome outcome = run("cut", 1, {change});
    ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
    const std::string key = change.substr(0, change.find('='));
    EXPECT_THAT(outcome.output, HasSubstr("with effect from here on: " + key)) << "named";
    EXPECT_NE(ledger("cut"), expected) << change;
    EXPECT_EQ(ledger("cut").substr(0, 300), expected.substr(0, 300)) << "what was before stays";
  }
  // The state of a different step under the name of this one: moments, parameters and position are all wrong.
  cut_off("whole", "cut", 5);
  fs::remove_all(checkpoint("cut", 5));
  fs::copy(checkpoint("cut", 4), checkpoint("cut", 5), fs::copy_options::recursive);
  const Outcome outcome = run("cut", 1);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("its manifest is of step 4"));
  EXPECT_EQ(ledger("cut"), expected) << "it was refused, and an older one taken";
}

TEST_F(Resume, BreakingChangesAreListedAndRefused) {
  run_to_end("whole");
  cut_off("whole", "cut", 4);
  const std::string before = ledger("cut");
  const Outcome outcome = run("cut", 1, {"run.seed=7", "batch.global=8", "schedule.learning_rate=1e-4"});
  EXPECT_EQ(outcome.exit_code, 73) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("run.seed: 42 there, 7 here"));
  EXPECT_THAT(outcome.output, HasSubstr("batch.global: 10 there, 8 here"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("learning_rate:")));
  EXPECT_EQ(ledger("cut"), before) << "nothing was touched";
  EXPECT_EQ(run("cut", 1, {"checkpoint.resume=never"}).exit_code, 73);
  EXPECT_EQ(run("new", 1, {"checkpoint.resume=required"}).exit_code, 66);
  write_file(folder / "text.txt", read_file(folder / "text.txt") + "One more document.\n\n");
  const Outcome data = run("cut");
  EXPECT_EQ(data.exit_code, 65) << data.output;
  EXPECT_THAT(data.output, HasSubstr("trained on different data"));
}

TEST_F(Resume, TheSameDataGoOnWhereverTheyLie) {
  run_to_end("whole");
  const std::string expected = ledger("whole"), text = read_file(folder / "text.txt");
  fs::create_directory(folder / "elsewhere");
  write_file(folder / "elsewhere/moved.txt", text);
  write_file(folder / "other.txt", text + "One more document.\n\n");
  fs::create_symlink("elsewhere/moved.txt", folder / "link.txt");
  const auto train = [&](const std::string& path) { return "data.train=" + (folder / path).string(); };
  for (const char* path : {"./text.txt", "elsewhere/moved.txt", "link.txt", "elsewhere/*.txt"}) {
    cut_off("whole", "cut", 5);
    const Outcome outcome = run("cut", 1, {train(path)});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr("warning: moved since the checkpoint, with the same content: data.train: "));
    EXPECT_THAT(outcome.output, HasSubstr(std::string(path) + " here"));
    EXPECT_EQ(ledger("cut"), expected) << path;
  }
  const Outcome other = run("cut", 2, {train("other.txt"), "run.max_steps=14"});
  EXPECT_EQ(other.exit_code, 73) << other.output;
  EXPECT_THAT(other.output, HasSubstr("other.txt differs from that of"));
  EXPECT_EQ(ledger("cut"), expected) << "nothing was touched";
  // A finished run counts as finished under any name of its data, and only for the same data.
  const Outcome finished = run("whole", 1, {train("link.txt")});
  EXPECT_EQ(finished.exit_code, 0) << finished.output;
  EXPECT_THAT(finished.output, HasSubstr("this run is finished"));
  EXPECT_EQ(run("whole", 1, {train("other.txt")}).exit_code, 73);
  const Outcome started = run("new", 1, {train("link.txt"), "checkpoint.resume=" + checkpoint("whole", 5).string()});
  EXPECT_EQ(started.exit_code, 0) << started.output;
  EXPECT_EQ(ledger("new"), expected);
}

TEST_F(Resume, DamageFallsBackAndIsNamed) {
  run_to_end("whole", 2);
  const std::string expected = ledger("whole");
  const auto flip = [&](const fs::path& file, int64_t where) {
    std::string bytes = read_file(file);
    const size_t at = static_cast<size_t>(where < 0 ? static_cast<int64_t>(bytes.size()) + where : where);
    bytes[at] = static_cast<char>(bytes[at] ^ 4);
    write_file(file, bytes);
  };
  cut_off("whole", "cut", 9);
  flip(checkpoint("cut", 9) / "shard-00001-of-00002.h5", -5000);
  flip(checkpoint("cut", 8) / "manifest.json", 700);
  fs::resize_file(checkpoint("cut", 7) / "view.h5", 100);
  fs::remove(checkpoint("cut", 6) / "shard-00000-of-00002.h5");
  EXPECT_EQ(llmtool({"verify", checkpoint("cut", 9).string()}).exit_code, 65);
  EXPECT_EQ(llmtool({"verify", checkpoint("cut", 5).string()}).exit_code, 0);
  const Outcome outcome = run("cut", 3);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.output;
  for (const int step : {9, 8, 7, 6})
    EXPECT_THAT(outcome.output, HasSubstr("step " + std::to_string(step) + " cannot be used"));
  EXPECT_THAT(outcome.output, HasSubstr("step-00000005, step 5"));
  EXPECT_EQ(ledger("cut"), expected);
  cut_off("whole", "cut", 2);
  for (const int step : {1, 2}) flip(checkpoint("cut", step) / "manifest.json", 700);
  const Outcome none = run("cut");
  EXPECT_EQ(none.exit_code, 65) << none.output;
  EXPECT_TRUE(fs::exists(checkpoint("cut", 1))) << "nothing was deleted";
  EXPECT_EQ(ledger("cut"), expected);
}

TEST_F(Resume, AFinishedRunStaysAsItIsAndCanBeExtended) {
  run_to_end("whole", 2);
  std::map<fs::path, fs::file_time_type> before, after;
  for (const auto& entry : fs::recursive_directory_iterator(folder / "whole"))
    before[entry.path()] = fs::last_write_time(entry.path());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(run("whole", i + 1).exit_code, 0);
  for (const auto& entry : fs::recursive_directory_iterator(folder / "whole"))
    after[entry.path()] = fs::last_write_time(entry.path());
  EXPECT_EQ(before, after);
  EXPECT_EQ(run("whole", 1, {"run.max_steps=8"}).exit_code, 0) << "the run is finished";
  const Outcome longer = run("whole", 3, {"run.max_steps=14"});
  EXPECT_EQ(longer.exit_code, 0) << longer.output;
  EXPECT_THAT(longer.output, HasSubstr("run.max_steps: 12 there, 14 here"));
  EXPECT_THAT(ledger("whole"), HasSubstr("{\"step\":14,"));
  // The mark of the end is ignored without its checkpoint.
  const std::string expected = ledger("whole");
  fs::resize_file(checkpoint("whole", 14) / "manifest.json", 500);
  const Outcome repaired = run("whole", 1, {"run.max_steps=14"});
  EXPECT_EQ(repaired.exit_code, 0) << repaired.output;
  EXPECT_THAT(repaired.output, HasSubstr("step 14 cannot be used"));
  EXPECT_EQ(ledger("whole"), expected);
}

TEST_F(Resume, ARunShorterThanItsWarmupGoesOn) {
  run_to_end("whole");
  const std::vector<std::string> one_step = {"run.max_steps=1", "evaluation.at_end=false"};
  run_to_end("short", 1, one_step);
  EXPECT_THAT(run("short", 1, one_step).output, HasSubstr("this run is finished"));
  run_to_end("short", 2);
  EXPECT_EQ(ledger("short"), ledger("whole"));
}

TEST_F(Resume, AFilePerNodeIsTheSame) {
  run_to_end("ranks", 2, {"checkpoint.every_steps=4"});
  run_to_end("node", 3, {"checkpoint.every_steps=4", "checkpoint.files=node"});
  EXPECT_EQ(ledger("node"), ledger("ranks"));
  EXPECT_TRUE(fs::exists(checkpoint("node", 8) / "shard-00000-of-00001.h5"));
  EXPECT_FALSE(fs::exists(checkpoint("node", 8) / "shard-00001-of-00003.h5"));
  EXPECT_EQ(llmtool({"verify", checkpoint("node", 8).string()}).exit_code, 0);
  const auto score_of = [&](const std::string& name) {
    return shell("echo '{\"input_ids\": [1, 9, 4, 2]}' | " + programs::llmtool + " logprobs --model " +
                 checkpoint(name, 8).string());
  };
  EXPECT_EQ(score_of("node").exit_code, 0) << score_of("node").output;
  EXPECT_EQ(score_of("node").output, score_of("ranks").output);
  for (const auto& [ranks, files] : {std::pair(1, "rank"), {2, "node"}, {4, "rank"}}) {
    fs::remove_all(folder / "cut");
    fs::copy(folder / "node", folder / "cut", fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    fs::remove(folder / "cut/finished.json");
    fs::remove_all(checkpoint("cut", 12));
    run_to_end("cut", ranks, {"checkpoint.every_steps=4", std::string("checkpoint.files=") + files});
    EXPECT_EQ(ledger("cut"), ledger("ranks"));
  }
}

TEST_F(Resume, AnotherRunCanStartFromACheckpoint) {
  run_to_end("whole", 2);
  const Outcome outcome = run("branch", 3, {"checkpoint.resume=" + checkpoint("whole", 6).string()});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_EQ(ledger("branch"), ledger("whole"));
  EXPECT_FALSE(fs::exists(checkpoint("branch", 5)));
}

TEST_F(Resume, KeepsTheNewestAndTheBest) {
  run_to_end("whole", 1,
             {"checkpoint.keep=2", "run.max_steps=10", "schedule.learning_rate=2", "evaluation.every_steps=4",
              "checkpoint.every_steps=2", "evaluation.at_end=false"});
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder / "whole/checkpoints")) {
    if (!entry.is_symlink()) names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  const std::string best = linked("whole", "best");
  for (const std::string& name : {std::string("step-00000008"), std::string("step-00000010"), best}) {
    EXPECT_THAT(names, ::testing::Contains(name));
  }
  EXPECT_EQ(best, "step-00000004") << "the learning rate is absurd";
  EXPECT_EQ(names.size(), 3u);
}

/// Another job's run is replaced, also by a job that was requeued.
TEST_F(Resume, ARequeuedJobDoesNotReplaceItsRun) {
  const auto run_as = [&](const std::string& name, int job, int restarts) {
    Outcome outcome = llmtrain({1, 1, arguments(name, {"run.overwrite=true"}), "",
                                fmt::format("SLURM_JOB_ID={} SLURM_RESTART_COUNT={}", job, restarts)});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  run_as("whole", 7, 0);
  EXPECT_THAT(run_as("whole", 7, 1), HasSubstr("this run is finished"));
  for (const auto& [job, restarts] : {std::pair(7, 1), {7, 0}, {8, 1}}) {
    cut_off("whole", "cut", 9);
    const std::string output = run_as("cut", job, restarts);
    EXPECT_EQ(output.find("resumed ") != std::string::npos, job == 7 && restarts > 0) << output;
    EXPECT_EQ(ledger("cut"), ledger("whole"));
  }
}

TEST_F(Resume, ALostLedgerBeginsAgainAndSaysSo) {
  run_to_end("whole");
  cut_off("whole", "cut", 9);
  fs::remove(folder / "cut/ledger.jsonl");
  const Outcome outcome = run("cut");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("a new one begins at step 9"));
  EXPECT_THAT(outcome.output, Not(HasSubstr("the old one")));
  EXPECT_TRUE(ledger("whole").ends_with(ledger("cut")));
}

TEST_F(Resume, ADamagedCheckpointIsNotOneOfThoseToKeep) {
  run_to_end("whole");
  cut_off("whole", "cut", 9);
  fs::remove(checkpoint("cut", 9) / "manifest.json");
  EXPECT_EQ(llmtool({"verify", checkpoint("cut", 9).string()}).exit_code, 65);
  run_to_end("cut", 1, {"checkpoint.keep=3", "checkpoint.every_steps=0"});
  EXPECT_TRUE(fs::exists(checkpoint("cut", 7))) << "with 8 and 12 one of three";
  EXPECT_FALSE(fs::exists(checkpoint("cut", 5)));
}

TEST_F(Resume, ACheckpointIsAModelThatRuns) {
  run_to_end("two", 2, {"parallel.zero=3", "checkpoint.every_steps=6"});
  run_to_end("one", 1, {"checkpoint.every_steps=6", "checkpoint.asynchronous=false", "checkpoint.buffer=1MiB"});
  const auto text_of = [&](const std::string& name, int64_t step) {
    const Outcome outcome = llmtool({"generate", "--model", checkpoint(name, step).string(), "--prompt", "Document 7",
                                     "--max-new-tokens", "30", "--seed", "3"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.output;
  };
  EXPECT_EQ(text_of("two", 12), text_of("one", 12));
  const auto score_of = [&](const std::string& name, int64_t step) {
    return shell("echo '{\"input_ids\": [1, 9, 4, 2]}' | " + programs::llmtool + " logprobs --model " +
                 checkpoint(name, step).string())
        .output;
  };
  EXPECT_THAT(score_of("two", 12), HasSubstr("\"sum\":-"));
  EXPECT_EQ(score_of("two", 12), score_of("one", 12));
  EXPECT_NE(score_of("two", 12), score_of("two", 6)) << "another step is another model";
  const Outcome shown = llmtool({"inspect", checkpoint("two", 6).string()});
  EXPECT_THAT(shown.output, HasSubstr("2 shards"));
  EXPECT_THAT(shown.output, HasSubstr("transformer.wte.weight"));
}

}  // namespace
}  // namespace llmtrain::test
