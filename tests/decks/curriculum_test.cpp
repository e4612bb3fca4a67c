// Curricula of difficulties that come from a model or from a column: losses are those of Transformers
// (tests/reference/curriculum), and the ledger depends neither on the number of ranks nor on where a run was resumed.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "decks/program.hpp"
#include "metrics/metrics_hdf5.hpp"

namespace llmtrain::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

class CurriculumDeck : public ::testing::Test {
 protected:
  CurriculumDeck() {
    write_file(folder / "deck.ini",
               "[run]\nmax_steps = 6\noutput = " + folder.text() +
                   "\n[data]\npacking = greedy\nvalidation_fraction = 0\n[batch]\n"
                   "sequence_length = 24\nmicro = 1\nglobal = 3\n[curriculum]\n"
                   "strategy = difficulty\nstart = 30\nsteps = 5\n[schedule]\nlearning_rate = 3e-3\n"
                   "[precision]\ncompute = fp32\n[log]\nparameter_hash_every_steps = 1\n");
  }
  Outcome start(const std::string& name, int ranks, std::vector<std::string> more) const {
    more.insert(more.begin(), (folder / "deck.ini").string());
    more.push_back("run.name=" + name);
    return llmtrain({ranks, 1, more});
  }
  /// The ledger, or the output if the run failed.
  std::string ledger(const std::string& name, int ranks, const std::vector<std::string>& more) const {
    const Outcome outcome = start(name, ranks, more);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.output;
    return outcome.exit_code == 0 ? read_file(folder / (name + "/ledger.jsonl")) : outcome.output + name;
  }
  void expect_identical(const std::vector<std::string>& deck) const {
    const std::string expected = ledger("one", 1, deck);
    EXPECT_THAT(expected, HasSubstr("\"curriculum\":"));
    for (const int ranks : {2, 3}) EXPECT_EQ(ledger(fmt::format("ranks{}", ranks), ranks, deck), expected) << ranks;
    std::vector<std::string> half = deck;
    half.emplace_back("run.max_steps=3");
    ledger("resumed", 2, half);
    fs::remove_all(folder / "cache");  // what is computed again is the same
    EXPECT_EQ(ledger("resumed", 1, deck), expected);
  }
  /// "data.train=a:0.6, b:0.4" with the rows in two sources.
  std::string mixed(const std::vector<json>& rows) const {
    std::string texts[2];
    for (size_t i = 0; i < rows.size(); ++i) texts[i % 3 == 0] += rows[i].dump() + "\n";
    write_file(folder / "a.jsonl", texts[0]);
    write_file(folder / "b.jsonl", texts[1]);
    return fmt::format("data.train={}:0.6, {}:0.4", (folder / "a.jsonl").string(), (folder / "b.jsonl").string());
  }

  TemporaryFolder folder;
};

TEST_F(CurriculumDeck, LossesAreThoseOfTransformers) {
  std::vector<json> rows;
  std::string text;
  const json golden = json::parse(read_file(source_folder() / "tests/reference/curriculum/losses.json"));
  for (json row : golden["rows"]) {
    rows.push_back(row);
    row.erase("loss");
    text += row.dump() + "\n";
  }
  write_file(folder / "rows.jsonl", text);
  const std::vector<std::string> alone = {"model.path=" + (source_folder() / "tests/reference/hf/llama").string(),
                                          "curriculum.difficulty=loss",
                                          "data.train=" + (folder / "rows.jsonl").string(), "data.packing=none"};
  const Outcome first = start("first", 2, alone), again = start("again", 1, alone);
  EXPECT_THAT(first.output, AllOf(HasSubstr("24 samples are scored"), HasSubstr("curriculum loss from")));
  EXPECT_THAT(again.output, HasSubstr("curriculum losses from"));
  MetricsTable table{"values", {{"value", "nats", {}}}};
  for (const auto& entry : fs::directory_iterator(folder / "cache")) {
    if (entry.path().filename().string().starts_with("curriculum-")) read_metrics_hdf5(entry.path().string(), table);
  }
  ASSERT_EQ(table.rows(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_NEAR(table.columns[0].values[i], rows[i]["loss"], 2e-5) << i;

  std::vector<std::string> deck(alone.begin(), alone.begin() + 2);
  deck.push_back(mixed(rows));
  expect_identical(deck);
  deck[1] = "curriculum.difficulty=length";
  EXPECT_NE(ledger("length", 1, deck), read_file(folder / "one/ledger.jsonl")) << "the control";
}

TEST_F(CurriculumDeck, AColumnOrdersRowsOfText) {
  std::vector<json> rows;
  for (int i = 0; i < 40; ++i) {
    rows.push_back({{"text", fmt::format("row {} says {}", i, i * 37 % 101)}, {"score", i * 7 % 40}, {"other", i}});
  }
  const std::vector<std::string> deck = {
      "data.tokenizer=bytes", "model.d_model=16", "model.n_layers=1",
      "model.n_heads=2",      mixed(rows),        "curriculum.difficulty=column:score"};
  expect_identical(deck);
  std::vector<std::string> other = deck;
  other.back() = "curriculum.difficulty=column:other";
  EXPECT_NE(ledger("other", 1, other), read_file(folder / "one/ledger.jsonl")) << "the control";

  std::vector<std::string> valued = deck;
  valued.insert(valued.end(), {"curriculum.scale=values", "curriculum.start=9.5", "curriculum.end=39"});
  EXPECT_THAT(start("values", 2, valued).output, HasSubstr("curriculum source 1: column from "));
  EXPECT_EQ(read_file(folder / "values/ledger.jsonl"), ledger("values1", 1, valued));
  EXPECT_NE(read_file(folder / "values/ledger.jsonl"), read_file(folder / "one/ledger.jsonl"));
}

TEST_F(CurriculumDeck, Refusals) {
  write_file(folder / "text.txt", "a text of some words");
  const std::string text = "data.train=" + (folder / "text.txt").string();
  const auto refused = [&](std::vector<std::string> more, int code) {
    more.insert(more.end(), {"data.tokenizer=bytes", "model.d_model=16", "model.n_layers=1", "model.n_heads=2"});
    more.emplace_back("--check");
    const Outcome outcome = start("refused", 1, more);
    EXPECT_EQ(outcome.exit_code, code) << outcome.output;
    return outcome.output;
  };
  EXPECT_THAT(refused({text, "curriculum.difficulty=loss"}, 78), HasSubstr("give its folder as model.path"));
  EXPECT_THAT(refused({text, "curriculum.difficulty=column:n"}, 65),
              HasSubstr("it is a text, which has no column 'n'"));
  EXPECT_THAT(refused({"data.train=builtin:stories", "curriculum.difficulty=column:n"}, 78),
              HasSubstr("builtin:stories is a text"));
  EXPECT_THAT(refused({text, "curriculum.difficulty=column"}, 78), HasSubstr("column:NAME"));
  EXPECT_THAT(refused({text, "curriculum.scale=values"}, 78),
              AllOf(HasSubstr("curriculum.end: is required with scale = values")));
  EXPECT_THAT(refused({text, "curriculum.start=2.5"}, 78), HasSubstr("must be a whole number: percent"));
  EXPECT_THAT(refused({text, "run.task=sft", "data.columns=difficulty:n"}, 78),
              HasSubstr("curriculum.difficulty = column:NAME names the column"));
}

}  // namespace
}  // namespace llmtrain::test
