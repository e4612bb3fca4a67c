#include "train/run_directory.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "core/error.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;

class RunDirectoryTest : public ::testing::Test {
 public:
  RunDirectoryTest() {
    std::string pattern = (fs::temp_directory_path() / "llmtrain-run-XXXXXX").string();
    folder = mkdtemp(pattern.data());
  }
  ~RunDirectoryTest() override { fs::remove_all(folder); }

  Config config(const std::vector<std::string>& overrides = {}) const {
    std::vector<std::string> all = {"run.output=" + folder.string()};
    all.insert(all.end(), overrides.begin(), overrides.end());
    return load_config(
        "[run]\nname = a\nmax_steps = 3\n[model]\nd_model = 8\nn_layers = 1\nn_heads = 2\n"
        "[data]\ntrain = builtin:stories\n[batch]\nsequence_length = 16\n",
        "a.ini", all);
  }
  void touch(const std::string& name) const { std::ofstream(folder / "a" / name) << "x"; }
  static std::string refusal(const Config& config) {
    try {
      const RunDirectory directory(config);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::cannot_create);
      return error.what();
    }
    ADD_FAILURE() << "nothing was refused";
    return "";
  }

  fs::path folder;
};

TEST_F(RunDirectoryTest, AFinishedRunIsFoundAndNotTouched) {
  {
    const RunDirectory directory(config());
    EXPECT_EQ(directory.found(), RunDirectory::Found::empty);
    directory.start(write_deck(config()));
    touch("ledger.jsonl");
    directory.mark_finished(3);
  }
  std::map<fs::path, fs::file_time_type> before;
  for (const auto& entry : fs::directory_iterator(folder / "a")) before[entry.path()] = entry.last_write_time();
  const RunDirectory again(config());
  EXPECT_EQ(again.found(), RunDirectory::Found::finished);
  std::map<fs::path, fs::file_time_type> after;
  for (const auto& entry : fs::directory_iterator(folder / "a")) after[entry.path()] = entry.last_write_time();
  EXPECT_EQ(before, after);
}

TEST_F(RunDirectoryTest, AnotherDeckIsRefusedAndOverwritesOnlyWhenAllowed) {
  {
    const RunDirectory directory(config());
    directory.start(write_deck(config()));
    touch("ledger.jsonl");
    directory.mark_finished(3);
  }
  touch("notes.txt");
  const std::string message = refusal(config({"run.seed=7"}));
  EXPECT_NE(message.find("run.overwrite=true"), std::string::npos);
  EXPECT_NE(message.find("run.seed: 42 there, 7 here"), std::string::npos) << message;
  const RunDirectory replaced(config({"run.seed=7", "run.overwrite=true"}));
  EXPECT_EQ(replaced.found(), RunDirectory::Found::empty);
  EXPECT_TRUE(fs::exists(folder / "a/ledger.jsonl")) << "removed before everything else was checked";
  replaced.start("");
  EXPECT_FALSE(fs::exists(folder / "a/ledger.jsonl"));
  EXPECT_FALSE(fs::exists(folder / "a/finished.json"));
  EXPECT_TRUE(fs::exists(folder / "a/notes.txt")) << "not ours to delete";
}

TEST_F(RunDirectoryTest, TheResolvedDeckIsTheSameDeck) {
  Config resolved = config();
  resolved.set_vocab_size(300);
  resolved.set_compute(PrecisionConfig::Compute::bf16);
  {
    const RunDirectory directory(resolved);
    directory.start(write_deck(resolved));
    directory.mark_finished(3);
  }
  const std::string file = (folder / "a/deck.ini").string();
  EXPECT_EQ(RunDirectory(load_config(read_deck_file(file), file)).found(), RunDirectory::Found::finished);
  EXPECT_EQ(RunDirectory(config({"log.every_steps=1"})).found(), RunDirectory::Found::finished);
  EXPECT_NE(refusal(config({"model.vocab_size=400"})).find("model.vocab_size: 300 there"), std::string::npos);
}

TEST_F(RunDirectoryTest, FilesThatNoRunHasWrittenAreNotReplaced) {
  fs::create_directories(folder / "a");
  touch("deck.ini");
  EXPECT_NE(refusal(config()).find("a run would replace deck.ini"), std::string::npos);
  EXPECT_NE(refusal(config({"run.overwrite=true"})).find("a run would replace deck.ini"), std::string::npos);
  EXPECT_TRUE(fs::exists(folder / "a/deck.ini"));
}

TEST_F(RunDirectoryTest, AnUnfinishedRunIsNotOverwrittenSilently) {
  {
    const RunDirectory directory(config());
    touch("ledger.jsonl");
  }
  EXPECT_NE(refusal(config()).find("did not finish"), std::string::npos);
  EXPECT_TRUE(fs::exists(folder / "a/ledger.jsonl"));
}

TEST_F(RunDirectoryTest, TheSecondJobNamesTheFirst) {
  const RunDirectory first(config());
  const std::string message = refusal(config());
  EXPECT_NE(message.find("another job writes here"), std::string::npos);
  EXPECT_NE(message.find("process " + std::to_string(getpid())), std::string::npos) << message;
}

TEST_F(RunDirectoryTest, APlaceThatCannotBeCreatedIsAnError) {
  std::ofstream(folder / "file") << "x";
  Config elsewhere = config();
  elsewhere.run.output = (folder / "file").string();
  EXPECT_NE(refusal(elsewhere).find("cannot be"), std::string::npos);
}

TEST_F(RunDirectoryTest, ADamagedMarkIsNotAFinishedRun) {
  {
    const RunDirectory directory(config());
    touch("ledger.jsonl");
  }
  touch("finished.json");
  EXPECT_NE(refusal(config()), "");
}

}  // namespace
}  // namespace llmtrain
