#include "train/run/run_directory.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "config/run_facts.hpp"
#include "core/error.hpp"
#include "harness/temporary_folder.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;

/// The directory of a deck's run.
struct Directory : RunDirectory {
  explicit Directory(const Config& config) : RunDirectory(config.run, comparison_with(config)) {}
};

class RunDirectoryTest : public ::testing::Test {
 public:
  Config config(const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> all = {"run.output=" + folder.text()};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return load_config(
        "[run]\nname = a\nmax_steps = 3\n[model]\nd_model = 8\nn_layers = 1\nn_heads = 2\n"
        "[data]\ntrain = builtin:stories\n[batch]\nsequence_length = 16\n",
        "a.ini", all);
  }
  void touch(const std::string& name) const { std::ofstream(folder / "a" / name) << "x"; }
  static std::string refusal(const Config& config) {
    try {
      const Directory directory(config);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::cannot_create);
      return error.what();
    }
    ADD_FAILURE() << "nothing was refused";
    return "";
  }

  test::TemporaryFolder folder;
};

TEST_F(RunDirectoryTest, AFinishedRunIsFoundAndNotTouched) {
  {
    const Directory directory(config());
    EXPECT_EQ(directory.found(), RunDirectory::Found::empty);
    directory.start(write_deck(config()));
    touch("ledger.jsonl");
    directory.mark_finished(3);
  }
  std::map<fs::path, fs::file_time_type> before;
  for (const auto& entry : fs::directory_iterator(folder / "a")) before[entry.path()] = entry.last_write_time();
  const Directory again(config());
  EXPECT_EQ(again.found(), RunDirectory::Found::finished);
  std::map<fs::path, fs::file_time_type> after;
  for (const auto& entry : fs::directory_iterator(folder / "a")) after[entry.path()] = entry.last_write_time();
  EXPECT_EQ(before, after);
}

// An open TensorBoard finds the files of the run that begins anew after those that it has read, and only after those.
TEST_F(RunDirectoryTest, ARunThatBeginsAnewEmptiesItsEventFiles) {
  const Directory directory(config());
  directory.start(write_deck(config()));
  fs::create_directory(folder / "a/tensorboard");
  touch("tensorboard/events.out.tfevents.1.host");
  touch("tensorboard/other");
  directory.start(write_deck(config()));
  EXPECT_EQ(fs::file_size(folder / "a/tensorboard/events.out.tfevents.1.host"), 0u);
  EXPECT_FALSE(fs::exists(folder / "a/tensorboard/other")) << "control: it is removed";
}

TEST_F(RunDirectoryTest, AnotherDeckIsRefusedAndOverwritesOnlyWhenAllowed) {
  {
    const Directory directory(config());
    directory.start(write_deck(config()));
    touch("ledger.jsonl");
    directory.mark_finished(3);
  }
  touch("notes.txt");
  const std::string message = refusal(config({"run.seed=7"}));
  EXPECT_NE(message.find("run.overwrite=true"), std::string::npos);
  EXPECT_NE(message.find("run.seed: 42 there, 7 here"), std::string::npos) << message;
  const Directory replaced(config({"run.seed=7", "run.overwrite=true"}));
  EXPECT_EQ(replaced.found(), RunDirectory::Found::empty);
  EXPECT_TRUE(fs::exists(folder / "a/ledger.jsonl")) << "removed before everything else was checked";
  replaced.start("");
  EXPECT_FALSE(fs::exists(folder / "a/ledger.jsonl"));
  EXPECT_FALSE(fs::exists(folder / "a/finished.json"));
  EXPECT_TRUE(fs::exists(folder / "a/notes.txt")) << "not ours to delete";
}

TEST_F(RunDirectoryTest, TheResolvedDeckIsTheSameDeck) {
  RunFacts facts(config());
  facts.vocabulary = 300;
  facts.compute = PrecisionConfig::Compute::bf16;
  const Config resolved = with_facts(config(), facts);
  {
    const Directory directory(resolved);
    directory.start(write_deck(resolved));
    directory.mark_finished(3);
  }
  const std::string file = (folder / "a/deck.ini").string();
  EXPECT_EQ(Directory(load_config(read_deck_file(file), file)).found(), RunDirectory::Found::finished);
  EXPECT_EQ(Directory(config({"log.every_steps=1"})).found(), RunDirectory::Found::finished);
  EXPECT_NE(refusal(config({"model.vocab_size=400"})).find("model.vocab_size: 300 there"), std::string::npos);
}

TEST_F(RunDirectoryTest, FilesThatNoRunHasWrittenAreNotReplaced) {
  fs::create_directories(folder / "a");
  touch("deck.ini");
  EXPECT_NE(refusal(config()).find("the run would replace deck.ini"), std::string::npos);
  EXPECT_NE(refusal(config({"run.overwrite=true"})).find("the run would replace deck.ini"), std::string::npos);
  EXPECT_TRUE(fs::exists(folder / "a/deck.ini"));
}

TEST_F(RunDirectoryTest, AnUnfinishedRunIsNotOverwrittenSilently) {
  {
    const Directory directory(config());
    touch("ledger.jsonl");
  }
  EXPECT_NE(refusal(config()).find("an unfinished run"), std::string::npos);
  EXPECT_TRUE(fs::exists(folder / "a/ledger.jsonl"));
}

TEST_F(RunDirectoryTest, TheSecondJobNamesTheFirst) {
  const Directory first(config());
  const std::string message = refusal(config());
  EXPECT_NE(message.find("another job owns this run"), std::string::npos);
  EXPECT_NE(message.find("process " + std::to_string(getpid())), std::string::npos) << message;
}

/// A process that owns the run until it is killed.
class Owner {
 public:
  explicit Owner(const Config& config) {
    std::array<int, 2> ready{};
    EXPECT_EQ(pipe(ready.data()), 0);
    pid_ = fork();
    if (pid_ == 0) {
      const Directory directory(config);
      if (write(ready[1], "x", 1) != 1) _exit(1);
      while (true) pause();
    }
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
  }
  ~Owner() { end(); }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
  void end() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
};

TEST_F(RunDirectoryTest, ADeadOwnerIsReplacedAndALivingOneIsNot) {
  for (int round = 0; round < 20; ++round) {
    Owner owner(config());
    EXPECT_NE(refusal(config()).find("process " + std::to_string(owner.pid())), std::string::npos);
    owner.end();
    const Directory directory(config());
  }
}

// The earlier start of a job may be on a host that hangs, with the lock.
TEST_F(RunDirectoryTest, AJobScriptsRestartTakesOverFromItsOwnJob) {
  setenv("SLURM_JOB_ID", "7", 1);
  const Owner owner(config());
  EXPECT_NE(refusal(config()).find("job 7"), std::string::npos) << "control: not a restart";
  setenv("LLMTRAIN_RESTART", "n2 hangs", 1);
  setenv("SLURM_JOB_ID", "8", 1);
  EXPECT_NE(refusal(config()).find("job 7"), std::string::npos) << "control: another job";
  setenv("SLURM_JOB_ID", "7", 1);
  {
    const Directory directory(config());
    unsetenv("LLMTRAIN_RESTART");
    EXPECT_NE(refusal(config()).find("process " + std::to_string(getpid())), std::string::npos);
  }
  unsetenv("SLURM_JOB_ID");
}

// State on a file system whose locks hold on one node only: the lock is free, and contains the name of another host.
TEST_F(RunDirectoryTest, AnOwnerOnAnotherHostIsSeenByItsStatus) {
  fs::create_directories(folder / "a/status");
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(folder / "a" / name) << text;
  };
  write("lock", "host elsewhere, process 17, job 4");
  write("status/rank-00000", "beat 0");
  {
    std::atomic<bool> alive = true;
    std::thread owner([&] {
      for (int beat = 1; alive; ++beat) {
        write("status/rank-00000", "beat " + std::to_string(beat));
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
      }
    });
    EXPECT_NE(refusal(config()).find("host elsewhere, process 17, job 4"), std::string::npos);
    alive = false;
    owner.join();
  }
  const Directory dead(config());  // its status no longer changes
}

TEST_F(RunDirectoryTest, AJobThatEndedIsNotLookedFor) {
  { const Directory directory(config()); }
  EXPECT_EQ(fs::file_size(folder / "a/lock"), 0U);
}

TEST_F(RunDirectoryTest, APlaceThatCannotBeCreatedIsAnError) {
  std::ofstream(folder / "file") << "x";
  Config elsewhere = config();
  elsewhere.run.output = (folder / "file").string();
  EXPECT_NE(refusal(elsewhere).find("cannot be"), std::string::npos);
}

/// Run by a user who is subject to permissions, unlike root: in a separate process.
TEST_F(RunDirectoryTest, CheckpointsThatCannotBeSavedAreSeenAtTheStart) {
  fs::create_directories(folder / "a/checkpoints");
  std::ofstream(folder / "a/lock").close();
  for (const char* name : {"", "a", "a/lock"}) fs::permissions(folder / name, fs::perms::all);
  for (const bool writable : {true, false}) {
    const fs::perms read =
        fs::perms::owner_read | fs::perms::others_read | fs::perms::owner_exec | fs::perms::others_exec;
    fs::permissions(folder / "a/checkpoints", writable ? fs::perms::all : read);
    const pid_t child = fork();
    if (child == 0) {
      if (getuid() == 0 && setuid(65534) != 0) _exit(2);
      try {
        const Directory directory(config());
      } catch (const UserError& error) {
        _exit(std::string(error.what()).find("checkpoints cannot be saved: Permission denied") != std::string::npos
                  ? 1
                  : 3);
      }
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), writable ? 0 : 1);
  }
}

TEST_F(RunDirectoryTest, ADamagedMarkIsNotAFinishedRun) {
  {
    const Directory directory(config());
    touch("ledger.jsonl");
  }
  touch("finished.json");
  EXPECT_NE(refusal(config()), "");
}

TEST_F(RunDirectoryTest, TheCountOfTheJobScriptIsNoRunAndStays) {
  fs::create_directories(folder / "a");
  touch("restarts");
  const Directory directory(config());
  EXPECT_EQ(directory.found(), RunDirectory::Found::empty);
  directory.start("[run]\n");
  EXPECT_TRUE(fs::exists(folder / "a/restarts"));
  EXPECT_TRUE(fs::exists(folder / "a/deck.ini"));
}

}  // namespace
}  // namespace llmtrain
