// Pages, comparisons and plots of runs: they show what the files have, whatever is in them, and run nothing of it.

#include "report/report.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.hpp"
#include "harness/temporary_folder.hpp"
#include "report/assets.hpp"
#include "report/charts/chart_plan.hpp"
#include "report/comparison.hpp"
#include "report/html_text.hpp"
#include "report/run_facts.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;
using testing::ContainsRegex;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

std::string text_of(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// A page is too long for a failure's message.
bool has(const std::string& page, const std::string& part) { return page.find(part) != std::string::npos; }

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

struct ReportTest : testing::Test {
  /// A run of two intervals, with an evaluation of every step.
  fs::path make_run(const std::string& name, double learning_rate, double loss, const std::string& more = "") const {
    fs::path run = folder / name;
    write(run / "deck.ini",
          fmt::format("[run]\nname = {} ; deck\ntask = dpo ; deck\nmax_steps = 20 ; deck\n[schedule]\n"
                      "learning_rate = {} ; command line\n",
                      name, learning_rate));
    std::string lines;
    for (int step = 10; step <= 20; step += 10) {
      lines += fmt::format(
          "{{\"step\":{0},\"wall_time\":{0},\"loss\":{1},\"loss_mean\":{1},\"rewards/margins\":{0},"
          "\"memory\":1048576,\"system/n1/cpu_percent\":50,\"seconds\":{{\"step\":1,\"data\":0.25}}}}\n",
          step, loss + 1.0 / step);
      lines += fmt::format("{{\"step\":{0},\"wall_time\":{0},\"validation_loss\":{1},\"best\":{2},\"seconds\":0.5}}\n",
                           step, loss + step, step == 10);
    }
    write(run / "metrics.jsonl", lines + more);
    write(run / "finished.json", "{}");
    return run;
  }
  std::string report(const std::vector<fs::path>& runs) const {
    write_report(runs, folder / "out/deeper/report.html");
    return text_of(folder / "out/deeper/report.html");
  }
  std::vector<RunReader> read(const std::vector<fs::path>& runs) const { return read_runs(runs); }

  test::TemporaryFolder folder;
};

TEST_F(ReportTest, ShowsEveryMetricAndItsSections) {
  const fs::path run = make_run("a", 0.001, 2, "{\"step\":20,\"prompt\":\"Once\",\"sample\":\"a text\"}\n");
  write(run / "log.txt", "llmtrain 0.1.0 (host)\ndevice     a processor\nstep 10/20\n");
  const std::string page = report({run});
  const std::vector<RunReader> runs = read({run});
  ASSERT_GT(runs.front().metrics().size(), 5U);
  for (const auto& [name, series] : runs.front().metrics()) EXPECT_TRUE(has(page, ">" + name + "<")) << name;
  for (const char* part : {"\"rewards/margins\":[[10,20],[10,20]]", "a processor", "a text", "<td>learning_rate</td>",
                           "<td>command line</td>", "best 12 at step 10", "Time by phase"}) {
    EXPECT_TRUE(has(page, part)) << part;
  }
  EXPECT_TRUE(has(page, "a processor\n</pre>")) << "the environment ends where the steps begin";
  EXPECT_FALSE(has(page, ">Events<")) << "control: what the run does not have";
  EXPECT_EQ(std::distance(fs::directory_iterator(folder / "out/deeper"), {}), 1) << "no temporary file is left";
}

TEST_F(ReportTest, HasNoReferenceToTheNetwork) {
  std::string page = report({make_run("a", 0.001, 2)});
  EXPECT_TRUE(has(page, "default-src 'none'; script-src 'nonce-"));
  const auto remove = [&](const std::string& part) {
    const size_t at = page.find(part);
    ASSERT_NE(at, std::string::npos);
    page.erase(at, part.size());
  };
  remove(html_text(asset("uplot.licence")));
  const std::string script(asset("uplot.js"));
  remove(script.substr(0, script.find("*/")));  // uPlot's first comment names its address
  for (const char* word : {"http:", "https:", "//cdn", "@import", "url(", " src=", "eval(", "new Function"}) {
    EXPECT_FALSE(has(page, word)) << word;
  }
  for (size_t at = 0; (at = page.find("href=", at)) != std::string::npos; ++at)
    EXPECT_EQ(page.substr(at + 5, 2), "\"#");
}

TEST_F(ReportTest, HostileTextStaysText) {
  const std::string hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>'\"&";
  std::string bytes = "{\"step\":20,\"prompt\":" + json_string(hostile) + ",\"sample\":" + json_string(hostile) + "}\n";
  bytes += "{\"step\":20,\"loss\":1e999,\"" + std::string("</script>") + "\":null}\n\xff\xfe\n";
  bytes += "{\"rolled_back_to_step\":10,\"from_step\":20,\"reason\":" + json_string(hostile) + "}\n";
  const fs::path run = make_run("<b>a", 0.001, 2, bytes);
  std::ofstream(run / "deck.ini", std::ios::app) << "path = " << hostile << " \xff\x01 ; deck: " << hostile << "\n";
  write(run / "log.txt", hostile + "\xc3\x28\n");
  const std::string page = report({run, make_run("b", 0.002, 3)});
  EXPECT_FALSE(has(page, "<script>"));
  EXPECT_FALSE(has(page, "<img"));
  EXPECT_FALSE(has(page, "<b>a"));
  EXPECT_TRUE(has(page, "&lt;script&gt;alert(1)")) << "control: it is shown";
  size_t scripts = 0;
  for (size_t at = 0; (at = page.find("</script", at)) != std::string::npos; ++at) ++scripts;
  EXPECT_EQ(scripts, 3U);
  const size_t begin = page.find('>', page.find("id=\"data\"")) + 1;
  const std::string json = page.substr(begin, page.find("</script", begin) - begin);
  EXPECT_TRUE(nlohmann::json::accept(json));
  EXPECT_EQ(json.find('<'), std::string::npos);
}

TEST_F(ReportTest, SeveralRunsShowWhatDiffers) {
  const fs::path a = make_run("a", 0.001, 2), b = make_run("b", 0.002, 3);
  const std::string page = report({a, b});
  EXPECT_TRUE(has(page, "data-kind=\"hyperparameter\"><button type=\"button\">schedule.learning_rate</button>"));
  EXPECT_TRUE(has(page, "class=\"parallel\""));
  EXPECT_FALSE(has(page, "<button type=\"button\">run.task</button>")) << "control: it is the same";
  const nlohmann::json json = nlohmann::json::parse(comparison_json(read({a, b})));
  EXPECT_EQ(json["differences"].dump(), R"({"schedule.learning_rate":["0.001","0.002"]})");
  EXPECT_EQ(json["metrics"]["validation_loss"]["best"].dump(), "[12.0,13.0]");
  EXPECT_EQ(json["metrics"]["validation_loss"]["best_step"].dump(), "[10,10]");
  EXPECT_EQ(json["metrics"]["validation_loss"]["last"].dump(), "[22.0,23.0]");
  EXPECT_EQ(json["metrics"]["memory"]["best"].dump(), "[null,null]");
  const std::string text = comparison_text(read({a, b}), 100);
  EXPECT_THAT(text, HasSubstr("schedule.learning_rate  0.001           0.002\n"));
  EXPECT_THAT(text, HasSubstr("validation_loss         12 (step 10)    13 (step 10)\n"));
}

TEST_F(ReportTest, EnergyIsThatOfTheRunAndOfAToken) {
  const std::string measured =
      "{\"step\":10,\"energy/joules\":500,\"energy/joules_per_token\":2}\n"
      "{\"step\":20,\"energy/joules\":1500,\"energy/joules_per_token\":0.25}\n";
  const fs::path a = make_run("a", 0.001, 2), b = make_run("b", 0.002, 3, measured);
  const std::string text = comparison_text(read({a, b}), 100);
  EXPECT_THAT(text, ContainsRegex("\nenergy +- +1.50 kJ, 0.25 J per token\n"));
  EXPECT_THAT(text, Not(HasSubstr("joules"))) << "it is there once";
  EXPECT_THAT(report({a, b}), HasSubstr("data-value=\"1500\">1.50 kJ, 0.25 J per token<"));
  EXPECT_THAT(comparison_text(read({a, a}), 100), Not(HasSubstr("energy"))) << "control: no run measured it";
}

/// Number of lines, and length of the longest one.
std::pair<size_t, size_t> size_of(const std::string& text) {
  size_t lines = 0, longest = 0;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line); ++lines) longest = std::max(longest, line.size());
  return {lines, longest};
}

TEST_F(ReportTest, ComparisonsFitTheWidth) {
  std::vector<fs::path> folders = {make_run("one", 0.001, 2), make_run("two", 0.002, 3)};
  const auto [lines, longest] = size_of(comparison_text(read(folders), 200));
  EXPECT_GT(longest, 50U);
  const std::string narrow = comparison_text(read(folders), 50);
  EXPECT_LE(size_of(narrow).second, 50U);
  EXPECT_EQ(size_of(narrow).first, 2 * lines + 1) << "one run below the other";
  EXPECT_THAT(narrow, HasSubstr("schedule.learning_rate  0.002\n"));
  for (int i = 3; i <= 12; ++i) folders.push_back(make_run(fmt::format("run{}", i), 0.001 * i, 2));
  const std::string many = comparison_text(read(folders), 80);
  EXPECT_LE(size_of(many).second, 80U);
  EXPECT_THAT(many, HasSubstr("\nDeck\n       schedule.learning_rate\none    0.001\n")) << "a line for each run";
  EXPECT_LE(size_of(comparison_text(read(folders), 1)).second, 60U) << "a column at least";
}

// A task has keys that another has not: with their defaults they hide what somebody has changed.
TEST_F(ReportTest, DefaultsThatARunHasNoKeyForAreNoDifference) {
  const fs::path a = make_run("a", 0.001, 2), b = make_run("b", 0.001, 3);
  std::ofstream(a / "deck.ini", std::ios::app) << "[dpo]\nbeta = 0.1  ; default\nlabel_smoothing = 0.2  ; deck\n";
  const nlohmann::json json = nlohmann::json::parse(comparison_json(read({a, b})));
  EXPECT_EQ(json["differences"].dump(), R"({"dpo.label_smoothing":["0.2",null]})");
  std::ofstream(b / "deck.ini", std::ios::app) << "[dpo]\nbeta = 0.2  ; default\n";
  EXPECT_EQ(nlohmann::json::parse(comparison_json(read({a, b})))["differences"]["dpo.beta"].dump(), R"(["0.1","0.2"])");
}

TEST_F(ReportTest, RunsWithoutMetricsAreNotedAndAloneRefused) {
  const fs::path empty = folder / "empty";
  write(empty / "deck.ini", "");
  EXPECT_THAT(report({make_run("a", 0.001, 2), empty}), HasSubstr("Warning: "));
  EXPECT_THROW(report({empty}), UserError);
  write(folder / "file", "");
  EXPECT_THROW(write_report({folder / "a"}, folder / "file/report.html"), UserError);
}

TEST(ReducedCurve, KeepsEndsExtremesAndGaps) {
  MetricSeries series;
  constexpr int64_t count = 1'000'000;
  for (int64_t i = 0; i < count; ++i) {
    series.steps.push_back(i + 1);
    series.values.push_back(std::sin(static_cast<double>(i) / 1e5));
  }
  series.values[123'456] = 50;
  series.values[654'321] = -50;
  series.values[777'777] = std::numeric_limits<double>::quiet_NaN();
  const MetricSeries reduced = reduced_curve(series, 400);
  EXPECT_LE(reduced.steps.size(), 1602U);
  EXPECT_GT(reduced.steps.size(), 700U);
  EXPECT_TRUE(std::ranges::is_sorted(reduced.steps));
  EXPECT_EQ(reduced.steps.front(), 1);
  EXPECT_EQ(reduced.steps.back(), count);
  EXPECT_EQ(std::ranges::count(reduced.values, 50), 1);
  EXPECT_EQ(std::ranges::count(reduced.values, -50), 1);
  EXPECT_EQ(std::ranges::count_if(reduced.values, [](double value) { return std::isnan(value); }), 1);
  MetricSeries few{{1, 2}, {3, 4}};
  EXPECT_THAT(reduced_curve(few, 400).values, ElementsAre(3, 4)) << "control: few points stay";
}

TEST(PlotBuckets, AreFewerForManyLines) {
  std::vector<Chart> charts(10);
  for (Chart& chart : charts) chart.lines.resize(6);
  EXPECT_EQ(buckets_of_plots(charts), plot_buckets);
  for (Chart& chart : charts) chart.lines.resize(300);
  EXPECT_EQ(buckets_of_plots(charts), 50U);
  EXPECT_EQ(buckets_of_plots({}), plot_buckets);
}

TEST_F(ReportTest, ChartsHaveRelatedMetricsOfARunAndOneMetricOfRuns) {
  const fs::path a = make_run("a", 0.001, 2), b = make_run("b", 0.002, 3);
  const std::vector<Chart> one = plan_charts(read({a})), two = plan_charts(read({a, b}));
  ASSERT_EQ(one.front().title, "Loss");
  EXPECT_EQ(one.front().lines.size(), 2U);
  EXPECT_EQ(one.front().lines[0].label, "training");
  EXPECT_EQ(one.front().lines[1].label, "validation");
  EXPECT_EQ(two.front().title, "Loss: training");
  EXPECT_EQ(two.front().lines.size(), 2U);
  EXPECT_EQ(two.front().lines[1].label, "b");
  const auto system = std::ranges::find(one, "system/cpu_percent", &Chart::title);
  ASSERT_NE(system, one.end());
  EXPECT_EQ(system->lines.front().label, "n1");
}

TEST_F(ReportTest, AChartOfTrafficHasTheAxesOfTheMesh) {
  const std::string more =
      "{\"step\":20,\"traffic/port_bytes\":30,\"traffic/data/port_bytes\":20,\"traffic/context/port_bytes\":10}\n";
  const std::vector<Chart> charts = plan_charts(read({make_run("a", 0.001, 2, more)}));
  const auto port = std::ranges::find(charts, "traffic/port_bytes", &Chart::title);
  ASSERT_NE(port, charts.end());
  std::vector<std::string> labels;
  for (const auto& line : port->lines) labels.push_back(line.label);
  EXPECT_EQ(labels, (std::vector<std::string>{"context", "data", "all"}));
}

TEST_F(ReportTest, AChartOfLoadsHasTheLayersOfExperts) {
  const std::string more = "{\"step\":20,\"experts/layer_1/load_max\":3,\"experts/layer_2/load_max\":2}\n";
  const std::vector<Chart> charts = plan_charts(read({make_run("a", 0.001, 2, more)}));
  const auto loads = std::ranges::find(charts, "Load of the busiest expert by layer", &Chart::title);
  ASSERT_NE(loads, charts.end());
  ASSERT_EQ(loads->lines.size(), 2U);
  EXPECT_EQ(loads->lines[1].label, "layer_2");
}

TEST(PhaseTimes, AreSumsOverSteps) {
  const test::TemporaryFolder folder;
  write(folder / "metrics.jsonl",
        "{\"step\":10,\"wall_time\":20,\"seconds\":{\"step\":1,\"data\":0.5,\"forward_backward\":1}}\n"
        "{\"step\":30,\"wall_time\":100,\"seconds\":{\"step\":1,\"data\":0.5,\"forward_backward\":2}}\n"
        "{\"step\":30,\"wall_time\":105,\"validation_loss\":1,\"best\":true,\"seconds\":5}\n");
  const std::vector<PhaseTime> times = phase_times(read_runs({folder.text()}).front());
  ASSERT_EQ(times.size(), 4U);
  EXPECT_EQ(times[0].name, "forward backward");
  EXPECT_EQ(times[0].seconds, 50);
  EXPECT_EQ(times[1].name, "other");
  EXPECT_EQ(times[1].seconds, 35);
  EXPECT_EQ(times[2].seconds, 15);
  EXPECT_EQ(times[3].seconds, 5);
}

TEST(HtmlText, IsEscapedAndUtf8) {
  EXPECT_EQ(html_text("<a b=\"c\" d='e'>&\xff\x01\t\n"),
            "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;\xEF\xBF\xBD\xEF\xBF\xBD\t\n");
  EXPECT_EQ(json_string("</script>\"\xff\xC3\xA4"), "\"\\u003c/script>\\\"\\ufffd\\u00e4\"");
  EXPECT_EQ(json_number(std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(json_number(0.1), "0.1");
}

}  // namespace
}  // namespace llmtrain
