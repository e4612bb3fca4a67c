// Each mistake ends the run at once, on every rank, with its exit code and one message that says what to do.

#include <gtest/gtest.h>

#include <filesystem>

#include "decks/program.hpp"

namespace llmtrain::test {
namespace {

class Errors : public ::testing::Test {
 protected:
  Errors() {
    std::string text;
    for (int i = 0; i < 20; ++i) text += "Line " + std::to_string(i * i) + " has some words to train on.\n";
    write_file(folder / "text.txt", text);
    write_deck("", "");
  }

  /// A valid deck with one line replaced.
  void write_deck(const std::string& from, const std::string& to) {
    std::string deck =
        "[run]\nmax_steps = 2\noutput = " + (folder / "runs").string() +
        "\n[model]\nd_model = 16\nn_layers = 1\nn_heads = 2\n[data]\ntrain = " + (folder / "text.txt").string() +
        "\n[batch]\nsequence_length = 8\n";
    if (!from.empty()) deck.replace(deck.find(from), from.size(), to);
    write_file(folder / "deck.ini", deck);
  }

  void expect_error(int code, const std::vector<std::string>& parts, std::vector<std::string> arguments = {}) {
    arguments.insert(arguments.begin(), (folder / "deck.ini").string());
    for (int ranks : {1, 3}) {
      const Outcome outcome = llmtrain({ranks, 1, arguments});
      EXPECT_EQ(outcome.exit_code, code) << ranks << " ranks: " << outcome.output;
      for (const std::string& part : parts) {
        const size_t at = outcome.output.find(part);
        EXPECT_NE(at, std::string::npos) << "no '" << part << "' in: " << outcome.output;
        EXPECT_EQ(outcome.output.find(part, at + 1), std::string::npos)
            << "twice '" << part << "' in: " << outcome.output;
      }
    }
  }

  TemporaryFolder folder;
};

TEST_F(Errors, NoneInASoundDeck) {
  const Outcome outcome = llmtrain({2, 1, {(folder / "deck.ini").string()}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
}

TEST_F(Errors, NoneByMoreThreadsThanARankTakes) {
  const std::string deck = (folder / "deck.ini").string();
  for (const char* option : {"--check", "--estimate"}) {
    const Outcome outcome = llmtrain({1, 600, {deck, option}});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  }
  const Outcome outcome = llmtrain({1, 600, {deck}});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
  for (const char* part : {"1 x 512 threads on 1 node", "OMP_NUM_THREADS=600 (a rank uses at most 512"}) {
    EXPECT_NE(outcome.output.find(part), std::string::npos) << outcome.output;
  }
}

TEST_F(Errors, AllOfADeckAreReportedAtOnce) {
  write_deck("d_model = 16\nn_layers = 1", "d_modle = 16\nn_layers = many");
  expect_error(78, {"deck.ini:5: model.d_modle", "did you mean d_model", "deck.ini:6: model.n_layers"});
}
TEST_F(Errors, OfFilesBelongToTheSameMessage) {
  write_deck("d_model = 16", "d_modle = 16");
  expect_error(78, {"deck.ini:5: model.d_modle", "nowhere.txt: there is no such file", "gone.txt: there is no such"},
               {"data.train=" + (folder / "nowhere.txt").string() + ", " + (folder / "gone.txt").string()});
}
TEST_F(Errors, AStartThatIsNotThere) {
  const std::vector<std::string> parts = {"checkpoint.resume",
                                          "atuo: there is no such checkpoint (did you mean auto?)"};
  expect_error(66, parts, {"checkpoint.resume=atuo"});
  expect_error(66, parts, {"checkpoint.resume=atuo", "--check"});
}
TEST_F(Errors, ANameThatNoDeckCouldHold) {
  std::filesystem::copy(folder / "deck.ini", folder / "d\xff.ini");
  const Outcome outcome = llmtrain({1, 1, {(folder / "d\xff.ini").string()}});
  EXPECT_EQ(outcome.exit_code, 78) << outcome.output;
  EXPECT_NE(outcome.output.find("run.name"), std::string::npos) << outcome.output;
  EXPECT_EQ(llmtrain({1, 1, {(folder / "d\xff.ini").string(), "run.name=d"}}).exit_code, 0);
}
TEST_F(Errors, ContradictionBetweenKeys) {
  write_deck("n_heads = 2", "n_heads = 3");
  expect_error(78, {"model.n_heads"});
}
TEST_F(Errors, OfTheCommandLine) {
  expect_error(78, {"command line: batch.micor", "did you mean micro"}, {"batch.micor=2"});
  expect_error(64, {"--chekc"}, {"--chekc"});
}
TEST_F(Errors, MissingDeckAndMissingText) {
  expect_error(66, {"nowhere.txt"}, {"data.train=" + (folder / "nowhere.txt").string()});
  std::filesystem::remove(folder / "deck.ini");
  expect_error(66, {"deck.ini"});
}
TEST_F(Errors, EmptyAndInvalidText) {
  write_file(folder / "text.txt", "");
  expect_error(65, {"text.txt"});
  write_file(folder / "text.txt", "fine\nnot \xFF fine\n");
  expect_error(65, {"text.txt:2: byte 9"});
}
TEST_F(Errors, TextShorterThanASample) {
  write_file(folder / "text.txt", "abc");
  expect_error(65, {"fewer than one sample needs"});
}
TEST_F(Errors, VocabularyMismatch) { expect_error(78, {"model.vocab_size"}, {"model.vocab_size=5"}); }
TEST_F(Errors, HostileRows) {
  write_file(folder / "rows.jsonl", "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]}\n{\"input_ids\": [1, 2\n");
  expect_error(65, {"rows.jsonl:2"}, {"data.train=" + (folder / "rows.jsonl").string(), "data.packing=none"});
  write_file(folder / "rows.jsonl", std::string(100000, '[') + "\n");
  expect_error(65, {"rows.jsonl:1"}, {"data.train=" + (folder / "rows.jsonl").string(), "data.packing=none"});
}
TEST_F(Errors, HostileTokenFile) {
  write_file(folder / "tokens.h5", "\x89HDF\r\n\x1a\n" + std::string(2000, '\7'));
  expect_error(65, {"tokens.h5"}, {"data.train=" + (folder / "tokens.h5").string()});
}
TEST_F(Errors, NotEnoughMemory) {
  expect_error(78, {"memory.limit"}, {"memory.limit=100K"});
  const Outcome estimate = llmtrain({1, 1, {(folder / "deck.ini").string(), "memory.limit=100K", "--estimate"}});
  EXPECT_EQ(estimate.exit_code, 0) << estimate.output;
  EXPECT_NE(estimate.output.find("(memory.limit is 97.7 KiB: the run would be refused)"), std::string::npos)
      << estimate.output;
  expect_error(78, {"not enough memory"}, {"model.d_model=65536", "model.n_layers=64", "model.n_heads=512"});
}
TEST_F(Errors, ADivergedRunStopsBeforeTheUpdate) {
  expect_error(79, {"the update was not applied, and there is no checkpoint to roll back to"},
               {"schedule.learning_rate=1e38", "run.max_steps=20", "optimizer.max_grad_norm=0", "run.overwrite=true"});
}
TEST_F(Errors, ADivergedRunIsNotFinishedByItsEvaluation) {
  const std::string name = "run.name=evaluated";
  expect_error(79, {"validation loss is not finite"},
               {name, "schedule.learning_rate=1e38", "run.max_steps=1", "optimizer.max_grad_norm=0",
                "precision.compute=fp32", "run.overwrite=true"});
  EXPECT_FALSE(std::filesystem::exists(folder / "runs/evaluated/finished.json"));
}
TEST_F(Errors, PromptsOutsideTheVocabulary) {
  expect_error(78, {"log.sample_prompts: '\xC3\xA9t\xC3\xA9'"},
               {"log.samples_every_steps=1", "log.sample_prompts=Line, \xC3\xA9t\xC3\xA9"});
}
TEST_F(Errors, NothingToTrainOn) {
  std::string rows;
  for (int i = 0; i < 20; ++i) rows += "{\"input_ids\": [1, 2, 3], \"labels\": [-100, -100, -100]}\n";
  write_file(folder / "rows.jsonl", rows);
  const std::string masked = (folder / "rows.jsonl").string();
  expect_error(65, {"made of rows.jsonl", "every label is -100"}, {"data.train=" + masked, "data.packing=none"});

  // A validation whose first batches have no token that counts would have the loss 0, the best for ever.
  const std::string later = (folder / "later.jsonl").string();
  write_file(later, rows + "{\"input_ids\": [1, 2, 3]}\n");
  expect_error(65, {"evaluation.batches", "every label is -100"},
               {"data.train=" + later, "data.validation=" + later, "data.packing=none", "evaluation.batches=2"});
}
TEST_F(Errors, ShapesThatKernelsDoNotHave) {
  expect_error(78, {"model.head_dim"}, {"model.head_dim=2048"});
  expect_error(78, {"model.max_seq_len"}, {"model.family=llama", "model.max_seq_len=4"});
}
TEST_F(Errors, AFailedStartLeavesTheOldRun) {
  ASSERT_EQ(llmtrain({1, 1, {(folder / "deck.ini").string()}}).exit_code, 0);
  const std::string before = shell("cd " + (folder / "runs/deck").string() + " && sha256sum *").output;
  expect_error(66, {"nowhere.txt"}, {"run.overwrite=true", "data.train=" + (folder / "nowhere.txt").string()});
  const std::string after = shell("cd " + (folder / "runs/deck").string() + " && sha256sum *").output;
  EXPECT_EQ(before.substr(0, before.find(" lock")).size() > 100, true) << before;
  const auto without_lock = [](std::string text) {
    const size_t at = text.find("lock");
    return text.erase(text.rfind('\n', at) + 1, 66 + 4);
  };
  EXPECT_EQ(without_lock(after), without_lock(before));
}
TEST_F(Errors, OutputThatCannotBeCreated) {
  expect_error(73, {"text.txt"}, {"run.output=" + (folder / "text.txt").string()});
}

}  // namespace
}  // namespace llmtrain::test
