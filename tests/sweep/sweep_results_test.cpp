// Results of a sweep from the folders of its runs, and power laws whose coefficients are known.

#include "sweep/sweep_results.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "core/error.hpp"
#include "harness/temporary_folder.hpp"
#include "sweep/local_queue.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

double chinchilla(double n, double d) { return 1.69 + 406.4 / std::pow(n, 0.34) + 410.7 / std::pow(d, 0.28); }

std::vector<LossPoint> chinchilla_points(double noise) {
  std::vector<LossPoint> points;
  for (const double n : {1e7, 3e7, 1e8, 3e8}) {
    for (const double d : {1e8, 1e9, 1e10}) {
      points.push_back({n, d, chinchilla(n, d) * (1 + noise * std::sin(points.size() * 7.0))});
    }
  }
  return points;
}

// The law of Hoffmann et al. 2022, equation 10.
TEST(PowerLaws, CoefficientsAreFound) {
  const PowerLaw law = fit_power_law(chinchilla_points(0));
  EXPECT_NEAR(std::exp(law.values[PowerLaw::log_e]), 1.69, 0.01);
  EXPECT_NEAR(law.values[PowerLaw::alpha], 0.34, 0.003);
  EXPECT_NEAR(law.values[PowerLaw::beta], 0.28, 0.003);
  EXPECT_NEAR(law.loss(1e9, 1e11), chinchilla(1e9, 1e11), 0.005);
  EXPECT_LT(law.largest_residual, 1e-4);
}

TEST(PowerLaws, ErrorsGrowWithTheNoise) {
  const PowerLaw exact = fit_power_law(chinchilla_points(0)), noisy = fit_power_law(chinchilla_points(0.003));
  EXPECT_GT(noisy.errors[PowerLaw::alpha], 5 * exact.errors[PowerLaw::alpha]);
  EXPECT_LT(std::abs(noisy.values[PowerLaw::alpha] - 0.34), 3 * noisy.errors[PowerLaw::alpha]);
}

TEST(PowerLaws, OfOneSizeHaveTokensAlone) {
  std::vector<LossPoint> points;
  for (const double d : {1e6, 1e7, 1e8, 1e9, 1e10}) points.push_back({1e6, d, 2 + 50 / std::pow(d, 0.3)});
  const PowerLaw law = fit_power_law(points);
  EXPECT_FALSE(law.has_parameters);
  EXPECT_NEAR(std::exp(law.values[PowerLaw::log_e]), 2, 0.001);
  EXPECT_NEAR(law.values[PowerLaw::beta], 0.3, 0.001);
  points.resize(3);
  EXPECT_THROW(fit_power_law(points), UserError);
  points.assign(9, {1e6, 1e6, 2});
  EXPECT_THROW(fit_power_law(points), UserError) << "nothing differs";
}

class Results : public testing::Test {
 protected:
  Results() {
    std::ofstream(folder_ / "s.ini") << "[run]\nseed = {1, 2, 3}\n[model]\nfamily = {llama, gpt2} if run.seed = 2\n";
    sweep_ = read_sweep(folder_.text() + "/s.ini");
  }
  void write_run(const std::string& name, std::initializer_list<double> losses, bool finished) const {
    const fs::path path = folder_ / "runs" / name;
    fs::create_directories(path);
    std::ofstream(path / "deck.ini") << "[run]\nmax_steps = 20\n";
    std::ofstream metrics(path / "metrics.jsonl");
    int step = 0;
    for (const double loss : losses)
      metrics << fmt::format("{{\"step\":{},\"validation_loss\":{}}}\n", step += 10, loss);
    std::ofstream(path / "log.txt") << "llmtrain\nmodel      llama: 2 layers; 1,234,567 parameters, fp32\n";
    std::ofstream(path / "ledger.jsonl") << "{\"step\":1,\"grad_norm\":\"0x1p+0\",\"tokens\":1000}\n"
                                            "{\"step\":2,\"grad_norm\":\"0x1p+0\",\"tokens\":500}\n"
                                            "{\"step\":2,\"validation_loss\":\"0x1p+0\",\"tokens\":77}\n";
    if (finished) std::ofstream(path / "finished.json") << "{\"steps\":20}";
  }
  std::vector<SweepResult> read() const {
    return read_results(sweep_, plan_sweep(sweep_, (folder_ / "runs").string()), folder_ / "runs");
  }

  test::TemporaryFolder folder_;
  SweepFile sweep_;
};

TEST_F(Results, BestRunComesFirst) {
  write_run("001", {3, 2.5}, true);
  write_run("003", {2, 2.75}, false);
  const std::vector<SweepResult> results = read();
  std::vector<std::string> names;
  for (const SweepResult& result : results) names.push_back(result.run.name);
  EXPECT_THAT(names, ElementsAre("003", "001", "002", "004"));
  EXPECT_EQ(results[0].best.step, 10);
  EXPECT_FALSE(results[0].point) << "it has not finished";
  ASSERT_TRUE(results[1].point);
  EXPECT_EQ(results[1].point->parameters, 1234567);
  EXPECT_EQ(results[1].point->tokens, 1500) << "trained ones";
  EXPECT_EQ(results[1].point->loss, 2.5);
  const std::string csv = results_csv(sweep_, results);
  EXPECT_THAT(csv, HasSubstr("run,state,step,validation_loss,run.seed,model.family\n003,"));
  EXPECT_THAT(csv, HasSubstr(",10,2,2,gpt2\n"));
  EXPECT_THAT(csv, HasSubstr("004,not begun,,,3,\n"));
  EXPECT_THAT(results_text(sweep_, results, 120), HasSubstr("003  stopped: 2 of 20 steps  2 "));
  EXPECT_THAT(results_json(sweep_, results), HasSubstr("\"model.family\": null"));
  EXPECT_THROW(power_law_text(results), UserError);
}

TEST_F(Results, PictureHasALineForEachRunWithTheMetric) {
  write_run("001", {3}, true);
  write_run("002", {2}, true);
  const std::string svg = parallel_coordinates_svg(sweep_, read());
  size_t lines = 0;
  for (size_t at = svg.find("<polyline"); at != std::string::npos; at = svg.find("<polyline", at + 1)) ++lines;
  EXPECT_EQ(lines, 2u);
  EXPECT_THAT(svg, HasSubstr("run.seed"));
  EXPECT_THAT(parallel_coordinates_svg(sweep_, {}), HasSubstr("</svg>")) << "no run has begun";
}

TEST_F(Results, QueueRunsCommandsAndTellsTheirEnds) {
  std::vector<QueuedCommand> commands;
  const std::string log = folder_.text() + "/log";
  for (const char* code : {"0", "3"})
    commands.push_back({code, {"sh", "-c", std::string("unset OMP_NUM_THREADS; nproc; exit ") + code}, log});
  std::map<std::string, int> codes;
  QueueOptions options;
  options.begins = [](const QueuedCommand&) {};
  options.ends = [&](const QueuedCommand& command, int code) { codes[command.name] = code; };
  EXPECT_EQ(run_queue(commands, options), 0);
  EXPECT_EQ(codes, (std::map<std::string, int>{{"0", 0}, {"3", 3}}));
  std::stringstream text;
  text << std::ifstream(log).rdbuf();
  EXPECT_EQ(text.str(), "1\n1\n") << "each has one core";
  const std::string stops = "trap 'exit 75' USR1; kill -TERM $PPID; sleep 60 & wait";
  cpu_set_t cores;
  ASSERT_EQ(sched_getaffinity(0, sizeof cores, &cores), 0);
  options.cores = CPU_COUNT(&cores);  // one command at a time
  codes.clear();
  EXPECT_EQ(run_queue({{"stops", {"sh", "-c", stops}, log}, {"waits", {"true"}, log}}, options), SIGTERM);
  EXPECT_EQ(codes, (std::map<std::string, int>{{"stops", 75}}));
  options.cores = 100000;
  EXPECT_THROW(run_queue(commands, options), UserError);
  options.cores = 1;
  EXPECT_THROW(run_queue({{"x", {"/no/such/program"}, log}}, options), UserError);
}

}  // namespace
}  // namespace llmtrain
