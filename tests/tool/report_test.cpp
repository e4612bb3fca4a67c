// report, export-viz, compare, and inspect of metrics: options, files and exit codes. tests/report has the contents.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "metrics/metrics_hdf5.hpp"
#include "tool/tool_program.hpp"

namespace llmtrain {
namespace {

using test::llmtool;
using test::Outcome;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;

class ReportTools : public test::ToolTest {
 protected:
  ReportTools() {
    for (const char* run : {"a", "b"}) {
      std::filesystem::create_directory(path(run));
      file(std::string(run) + "/metrics.jsonl",
           "{\"step\":10,\"loss_mean\":2,\"memory\":1000}\n{\"step\":20,\"loss_mean\":1,\"it's `touch x`\":3}\n");
    }
  }
};

TEST_F(ReportTools, ReportIsOneFile) {
  const Outcome outcome = llmtool({"report", path("a"), path("b"), "--output", path("out")});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, path("out/report.html") + "\n");
  EXPECT_THAT(content("out/report.html"), HasSubstr("<!DOCTYPE html>"));
}

TEST_F(ReportTools, CompareTakesAFolderOfRuns) {
  const Outcome outcome = llmtool({"compare", path("."), "--json"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, AllOf(HasSubstr("\"name\": \"a\""), HasSubstr("\"name\": \"b\"")));
  EXPECT_EQ(llmtool({"compare", path("absent")}).code, 66);
}

TEST_F(ReportTools, InspectShowsColumnsWhoseNamesHaveASlash) {
  MetricsTable train{"train", {{"step", "1", {2}}, {"rewards/chosen", "nats", {0.25}}}};
  write_metrics_hdf5(path("metrics.h5"), {train});
  const Outcome outcome = llmtool({"inspect", path("metrics.h5")});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ContainsRegex("rewards/chosen +1 +0.25 +0.25 +0.25  nats"));
  train.columns[1].values.push_back(1);
  write_metrics_hdf5(path("metrics.h5"), {train});
  EXPECT_EQ(llmtool({"inspect", path("metrics.h5")}).code, 65) << "control: columns of different lengths";
}

TEST_F(ReportTools, FormatsAreChecked) {
  const Outcome outcome = llmtool({"report", path("a"), "--format", "pdf"});
  EXPECT_EQ(outcome.code, 64);
  EXPECT_THAT(outcome.err, HasSubstr("--format pdf: it must be html, png or svg"));
}

TEST_F(ReportTools, PngAloneNeedsGnuplot) {
  const std::string search_path = std::getenv("PATH");
  setenv("PATH", path("none").c_str(), 1);
  const Outcome outcome = llmtool({"export-viz", path("a"), "--output", path("out")});
  const Outcome svg = llmtool({"report", path("a"), "--output", path("other"), "--format", "svg"});
  setenv("PATH", search_path.c_str(), 1);
  EXPECT_EQ(outcome.code, 69);
  EXPECT_THAT(outcome.err, HasSubstr("gnuplot is not installed"));
  EXPECT_THAT(outcome.err, HasSubstr("--format svg"));
  EXPECT_EQ(svg.code, 0) << svg.err;
  EXPECT_EQ(content("out/loss.svg"), content("other/loss.svg")) << "the others are written all the same";
  for (const auto& entry : std::filesystem::directory_iterator(path("out")))
    EXPECT_EQ(entry.path().extension(), ".svg") << "nothing else is left behind";
}

TEST_F(ReportTools, PicturesAreFilesOfTheirOwn) {
  const Outcome outcome = llmtool({"report", path("a"), "--output", path("out"), "--format", "svg"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(content("out/loss.svg"), HasSubstr(">training</text>"));
  EXPECT_THAT(content("out/loss.svg"), HasSubstr("<polyline points="));
  EXPECT_THAT(content("out/it-s-touch-x.svg"), HasSubstr("it&#39;s"));
  if (std::system("command -v gnuplot >/dev/null") != 0) GTEST_SKIP() << "gnuplot is not installed";
  const Outcome png = llmtool({"report", path("a"), "--output", path("out"), "--format", "png"});
  EXPECT_EQ(png.code, 0) << png.err;
  EXPECT_THAT(content("out/loss.png"), HasSubstr("PNG"));
  EXPECT_FALSE(std::filesystem::exists("x")) << "gnuplot runs no command of a name";
}

}  // namespace
}  // namespace llmtrain
