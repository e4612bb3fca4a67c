// Reader of a run's folder: files that grow, shrink, vanish, end within a line or are another run's, steps that are
// done again, and hostile contents.

#include "report/run_reader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "core/error.hpp"
#include "harness/temporary_folder.hpp"
#include "report/assets.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using testing::ElementsAre;
using testing::HasSubstr;

struct RunReaderTest : testing::Test {
  void write(const std::string& name, const std::string& text) const {
    fs::create_directories((run / name).parent_path());
    std::ofstream(run / name, std::ios::binary) << text;
  }
  void append(const std::string& text) const {
    std::ofstream(run / "metrics.jsonl", std::ios::binary | std::ios::app) << text;
  }
  const MetricSeries& loss() const { return reader.metrics().at("loss"); }

  TemporaryFolder folder;
  fs::path run = folder / "a";
  RunReader reader{run};
};

TEST_F(RunReaderTest, TakesWhatIsAppendedOnce) {
  write("deck.ini", "[run]\nmax_steps = 30 ; deck\n");
  write("metrics.jsonl", "{\"step\":10,\"wall_time\":1.5,\"loss\":3.0,\"seconds\":{\"step\":0.1}}\n{\"step\":20,\"lo");
  EXPECT_TRUE(reader.refresh());
  EXPECT_THAT(loss().steps, ElementsAre(10));
  EXPECT_FALSE(reader.refresh()) << "half a line is none";
  append("ss\":2.0,\"wall_time\":3}\n");
  EXPECT_TRUE(reader.refresh());
  EXPECT_THAT(loss().steps, ElementsAre(10, 20));
  EXPECT_THAT(loss().values, ElementsAre(3.0, 2.0));
  EXPECT_THAT(reader.metrics().at("seconds/step").values, ElementsAre(0.1));
  EXPECT_EQ(reader.last_step(), 20);
  EXPECT_EQ(reader.max_steps(), 30);
  EXPECT_EQ(reader.wall_time(), 3);
  EXPECT_EQ(reader.problem(), "");
  EXPECT_FALSE(reader.refresh());
}

TEST_F(RunReaderTest, EvaluationsHaveNamesOfTheirOwn) {
  write("metrics.jsonl",
        "{\"step\":10,\"loss\":null,\"wall_time\":1}\n"
        "{\"step\":10,\"wall_time\":2,\"validation_loss\":2.5,\"perplexity\":12,\"best\":true,\"seconds\":0.5}\n"
        "{\"step\":20,\"wall_time\":3,\"validation_loss\":2.6,\"perplexity\":13,\"best\":false,\"seconds\":0.5}\n");
  reader.refresh();
  EXPECT_TRUE(std::isnan(loss().values.at(0)));
  EXPECT_THAT(reader.metrics().at("validation_perplexity").values, ElementsAre(12, 13));
  EXPECT_THAT(reader.metrics().at("evaluation_seconds").steps, ElementsAre(10, 20));
  EXPECT_THAT(reader.best_steps(), ElementsAre(10));
  EXPECT_EQ(reader.metrics().count("best") + reader.metrics().count("seconds") + reader.metrics().count("step"), 0U);
}

TEST_F(RunReaderTest, SlowNodesAreEventsAndNoMetrics) {
  write("metrics.jsonl",
        "{\"step\":10,\"wall_time\":1,\"loss\":3}\n"
        "{\"step\":10,\"wall_time\":1,\"slow_node\":\"n7\",\"slow_ranks\":[12],\"ratio\":1.83}\n"
        "{\"step\":20,\"wall_time\":2,\"recovered_node\":\"n7\",\"ratio\":1.02}\n");
  reader.refresh();
  ASSERT_EQ(reader.node_events().size(), 2U);
  EXPECT_EQ(reader.node_events()[0].host, "n7");
  EXPECT_TRUE(reader.node_events()[0].slow);
  EXPECT_EQ(reader.node_events()[0].ratio, 1.83);
  EXPECT_FALSE(reader.node_events()[1].slow);
  EXPECT_EQ(reader.metrics().count("ratio"), 0U);
  EXPECT_THAT(reader.metrics().at("loss").values, ElementsAre(3)) << "control: steps are metrics";
}

TEST_F(RunReaderTest, StepsThatAreDoneAgainReplaceThoseBefore) {
  write("metrics.jsonl",
        "{\"step\":10,\"loss\":3}\n{\"step\":20,\"loss\":2}\n"
        "{\"step\":20,\"prompt\":\"a\",\"sample\":\"old\"}\n"
        "{\"step\":20,\"validation_loss\":2,\"best\":true}\n{\"step\":30,\"loss\":1}\n");
  reader.refresh();
  EXPECT_THAT(loss().steps, ElementsAre(10, 20, 30)) << "control: before the resume";
  append("{\"resumed_from_step\":15,\"wall_time\":9,\"ranks\":2,\"restart\":\"n2 hangs\"}\n");
  reader.refresh();
  EXPECT_THAT(loss().steps, ElementsAre(10));
  EXPECT_TRUE(reader.samples().empty());
  EXPECT_TRUE(reader.best_steps().empty());
  append(
      "{\"step\":20,\"loss\":7}\n{\"step\":20,\"prompt\":\"a\",\"sample\":\"new\"}\n"
      "{\"rolled_back_to_step\":10,\"from_step\":25,\"wall_time\":11,\"reason\":\"loss is nan\"}\n"
      "{\"step\":20,\"loss\":8}\n{\"step\":20,\"loss\":9}\n");
  reader.refresh();
  EXPECT_THAT(loss().steps, ElementsAre(10, 20));
  EXPECT_THAT(loss().values, ElementsAre(3, 9)) << "of the same step the last line stands";
  ASSERT_EQ(reader.events().size(), 2U);
  EXPECT_EQ(reader.events()[0].kind, RunEvent::Kind::resume);
  EXPECT_EQ(reader.events()[0].step, 15);
  EXPECT_EQ(reader.events()[0].text, "2 ranks; n2 hangs");
  EXPECT_EQ(reader.events()[1].kind, RunEvent::Kind::rollback);
  EXPECT_EQ(reader.events()[1].from, 25);
  EXPECT_EQ(reader.events()[1].text, "loss is nan");
}

TEST_F(RunReaderTest, FilesThatShrinkChangeOrVanishAreReadAgain) {
  write("metrics.jsonl", "{\"step\":10,\"loss\":3}\n{\"step\":20,\"loss\":2}\n");
  reader.refresh();
  write("metrics.jsonl", "{\"step\":10,\"loss\":3}\n");
  EXPECT_TRUE(reader.refresh());
  EXPECT_THAT(loss().steps, ElementsAre(10)) << "shorter";
  write("metrics.jsonl", "{\"step\":11,\"loss\":4}\n{\"step\":12,\"loss\":5}\n");
  EXPECT_TRUE(reader.refresh());
  EXPECT_THAT(loss().steps, ElementsAre(11, 12)) << "another, which is longer";
  fs::remove_all(run);
  EXPECT_TRUE(reader.refresh());
  EXPECT_TRUE(reader.metrics().empty());
  EXPECT_THAT(reader.problem(), HasSubstr("no such folder"));
  write("metrics.jsonl", "{\"step\":1,\"loss\":6}\n");
  EXPECT_TRUE(reader.refresh());
  EXPECT_THAT(loss().values, ElementsAre(6));
  EXPECT_EQ(reader.problem(), "");
}

TEST_F(RunReaderTest, HostileLinesAreCountedAndLeftOut) {
  write("metrics.jsonl",
        "{\"step\":10,\"loss\":3}\n[]\n\xff\xfe\n{\"step\":\"x\",\"loss\":{\"a\":{\"b\":1}},\"text\":\"t\"}\n" +
            std::string(100, '[') + "\n\n{\"step\":20,\"loss\":1e999}\n");
  write("deck.ini", "no deck\n[\n=\n = 1\n# \n" + std::string(5000, 'x'));
  reader.refresh();
  EXPECT_THAT(reader.problem(), HasSubstr("metrics.jsonl:2: not a line of metrics (5 of 7 lines)"));
  EXPECT_THAT(loss().steps, ElementsAre(10));
  fs::remove(run / "metrics.jsonl");
  ASSERT_EQ(mkfifo((run / "metrics.jsonl").c_str(), 0600), 0);
  reader.refresh();  // returns
  EXPECT_THAT(reader.problem(), HasSubstr("metrics.jsonl: Invalid argument"));
}

TEST_F(RunReaderTest, ReadsTheDeckAsItIsPrinted) {
  write("deck.ini",
        "# Resolved deck\n\n[run]\nname = a                  ; command line\n# epochs: max_steps is given\n"
        "# deck: a note\ntags = one,\n    two, thr\\\n    ee\nempty =       ; default\n[model]\npath = \\x3b ; "
        "automatic: x\n");
  reader.refresh();
  ASSERT_EQ(reader.deck().size(), 4U);
  EXPECT_EQ(reader.deck()[0].provenance, "command line");
  EXPECT_EQ(reader.deck()[1].value, "one, two, three");
  EXPECT_EQ(reader.deck()[1].provenance, "deck: a note");
  EXPECT_EQ(reader.deck_value("run", "empty"), "");
  EXPECT_EQ(reader.deck()[3].section, "model");
  EXPECT_EQ(reader.deck()[3].value, "\\x3b");
  EXPECT_EQ(reader.deck()[3].provenance, "automatic: x");
}

TEST_F(RunReaderTest, LedgerHasBadStepsAndTheLastStep) {
  write("ledger.jsonl",
        "{\"step\":1,\"loss\":\"0x1p+1\",\"grad_norm\":\"0x1p+0\"}\n"
        "{\"step\":2,\"loss\":\"nan\",\"grad_norm\":\"0x1.8p+1\",\"bad_steps\":1,\"sample_ids\":[3]}\n"
        "{\"step\":3,\"loss\":null,\"grad_norm\":\"0x0p+0\"}\n");
  reader.refresh();
  ASSERT_EQ(reader.bad_steps().size(), 1U);
  EXPECT_EQ(reader.bad_steps()[0].step, 2);
  EXPECT_TRUE(std::isnan(reader.bad_steps()[0].loss));
  EXPECT_EQ(reader.bad_steps()[0].grad_norm, 3);
  EXPECT_EQ(reader.last_step(), 3);
}

TEST_F(RunReaderTest, LogIsCut) {
  write("log.txt", "first\n" + std::string(5000, 'x') + "\nstep 12/345   3%  loss 2\nlast\n");
  EXPECT_THAT(reader.log_tail(2), ElementsAre("step 12/345   3%  loss 2", "last"));
  EXPECT_EQ(reader.log_tail(3).front().size(), 1000U);
  EXPECT_THAT(reader.log_head(1), ElementsAre("first"));
  reader.refresh();
  EXPECT_EQ(reader.max_steps(), 345) << "where the deck has epochs";
}

TEST_F(RunReaderTest, LinksOutOfTheRunAreNotFollowed) {
  write("log.txt", "its own\n");
  EXPECT_THAT(reader.log_tail(1), ElementsAre("its own")) << "control";
  std::ofstream(folder / "secret") << "secret\n{\"step\":1,\"loss\":2}\n";
  for (const char* name : {"log.txt", "metrics.jsonl"}) {
    fs::remove(run / name);
    fs::create_symlink(folder / "secret", run / name);
  }
  reader.refresh();
  EXPECT_TRUE(reader.log_tail(1).empty());
  EXPECT_TRUE(reader.metrics().empty());
}

TEST_F(RunReaderTest, RunsUntilItsLockIsEmptyOrItsOwnerGone) {
  char host[256] = {};
  gethostname(host, sizeof host - 1);
  const std::string here = "host " + std::string(host) + ", process ";
  write("deck.ini", "");
  reader.refresh();
  EXPECT_FALSE(reader.running()) << "control: no lock";
  write("lock", here + std::to_string(getpid()));
  EXPECT_TRUE(reader.running());
  write("lock", here + "999999999");
  EXPECT_FALSE(reader.running());
  write("lock", "host elsewhere, process 1, job 7");
  EXPECT_FALSE(reader.running());
  write("status/rank-00000", "x");
  EXPECT_TRUE(reader.running()) << "its status file is new";
  write("lock", "");
  EXPECT_FALSE(reader.running());
  write("lock", here + std::to_string(getpid()));
  write("finished.json", "{}");
  reader.refresh();
  EXPECT_TRUE(reader.finished());
  EXPECT_FALSE(reader.running());
}

TEST_F(RunReaderTest, RunFoldersAreThoseOfTheArgumentsInOrder) {
  write("deck.ini", "");
  write("../c/ledger.jsonl", "");
  write("../b/metrics.jsonl", "");
  write("../empty/deeper/deck.ini", "");
  const fs::path root = folder.text();
  EXPECT_THAT(run_folders({folder.text()}), ElementsAre(root / "a", root / "b", root / "c"));
  EXPECT_THAT(run_folders({root / "c/", root / "x/../a", root / "c"}), ElementsAre(root / "c", root / "a"));
  EXPECT_THROW(run_folders({root / "absent"}), UserError);
  EXPECT_THROW(run_folders({root / "a/deck.ini"}), UserError);
}

TEST(Assets, AreThere) {
  EXPECT_THAT(asset("uplot.js"), HasSubstr("uPlot"));
  EXPECT_THAT(asset("uplot.css"), HasSubstr(".u-wrap"));
  EXPECT_THAT(asset("uplot.licence"), HasSubstr("Permission is hereby granted"));
  EXPECT_THROW(asset("absent"), Error);
}

}  // namespace
}  // namespace llmtrain
