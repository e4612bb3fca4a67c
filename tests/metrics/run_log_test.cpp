#include "metrics/run_log.hpp"

#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "core/error.hpp"
#include "core/number_text.hpp"
#include "harness/temporary_folder.hpp"
#include "metrics/append_file.hpp"
#include "metrics/console.hpp"
#include "metrics/metrics_hdf5.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;

class RunLogFiles : public ::testing::Test {
 protected:
  std::vector<std::string> lines(const std::string& name) const {
    std::ifstream file(folder / name);
    std::vector<std::string> out;
    for (std::string line; std::getline(file, line);) out.push_back(line);
    return out;
  }
  RunLogOptions options() const {
    RunLogOptions o;
    o.run.directory = folder.text();
    o.total_steps = 4;
    o.every_steps = 2;
    o.flops_per_token = 1000;
    return o;
  }
  static StepRecord record(int64_t step, double loss, int64_t tokens) {
    StepRecord r;
    r.step = step;
    r.learning_rate = 0.0009765625;
    r.loss = loss;
    r.grad_norm = 1.5;
    r.tokens = tokens;
    r.samples = 0xABCu;
    r.seconds = 0.5;
    return r;
  }

  test::TemporaryFolder folder;
};

TEST_F(RunLogFiles, LedgerLinesAreExact) {
  RunLog log(options());
  StepRecord first = record(1, 2.5, 4096);
  log.step(first);
  StepRecord second = record(2, 2.25, 10);
  second.parameters = 0x0123456789ABCDEFu;
  log.step(second);
  log.evaluation({2, 1.0 / 3.0, 100, 0.1, true});
  const auto ledger = lines("ledger.jsonl");
  ASSERT_EQ(ledger.size(), 3u);
  EXPECT_EQ(ledger[0], R"({"step":1,"learning_rate":"0x1p-10","loss":"0x1.4p+1","grad_norm":"0x1.8p+0","tokens":4096,)"
                       R"("samples":"0000000000000abc"})");
  EXPECT_EQ(ledger[1], R"({"step":2,"learning_rate":"0x1p-10","loss":"0x1.2p+1","grad_norm":"0x1.8p+0","tokens":10,)"
                       R"("samples":"0000000000000abc","parameters":"0123456789abcdef"})");
  EXPECT_EQ(ledger[2], R"({"step":2,"validation_loss":"0x1.5555555555555p-2"})");
}

// The remaining time is that of the whole run: the same steps take longer if evaluations follow.
TEST_F(RunLogFiles, TimeLeftHasTheEvaluationsToCome) {
  RunLogOptions o = options();
  o.total_steps = 100;
  o.evaluations_left = [](int64_t step) { return 10 - (step - 1) / 10; };  // every ten steps
  o.evaluation_steps = 40;
  RunLog log(o);
  const auto left = [&] {
    const std::string line = lines("log.txt").back();
    return line.substr(line.find("left ") + 5);
  };
  log.step(record(1, 2, 10));
  log.step(record(2, 2, 10));
  EXPECT_EQ(left(), duration(98 * 0.5 + 10 * 40 * 0.5));  // none was timed yet
  for (int64_t step = 3; step <= 10; ++step) log.step(record(step, 2, 10));
  EXPECT_EQ(left(), duration(90 * 0.5 + 10 * 20)) << "that of step 10 is to come";
  log.evaluation({10, 2, 100, 60, true});
  log.step(record(11, 2, 10));
  log.step(record(12, 2, 10));
  EXPECT_EQ(left(), duration(88 * 0.5 + 9 * 60));
  log.evaluation({20, 2, 100, 20, true});
  for (int64_t step = 13; step <= 98; ++step) log.step(record(step, 2, 10));
  EXPECT_EQ(left(), duration(2 * 0.5 + 40)) << "the mean of two";
}

// Other tasks between the steps of a job (saves, samples) also extend the remaining time.
TEST_F(RunLogFiles, TimeLeftHasWhatComesBetweenSteps) {
  RunLogOptions o = options();
  o.total_steps = 1002;
  RunLog log(o);
  StepRecord r = record(1, 2, 10);
  r.seconds = 1e-3;
  log.step(r);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  r.step = 2;
  log.step(r);
  const std::string line = lines("log.txt").back();
  EXPECT_NE(line.find("left 3 min"), std::string::npos) << line;  // 1000 steps of 0.2 s and more
}

TEST_F(RunLogFiles, AReaderThatGoesAwayEndsNothing) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  std::fflush(stdout);
  const int kept = dup(STDOUT_FILENO);
  ASSERT_GE(dup2(ends[1], STDOUT_FILENO), 0);
  close(ends[1]);
  keep_going_without_reader();
  {
    Console console(folder / "log.txt", true);
    console.print("before");
    close(ends[0]);
    console.print("while");
    console.print("after");
  }
  {
    Console next(folder / "next.txt", true);  // as that of the run after that of its start
    next.print("later");
    next.print("last");
  }
  std::fflush(stdout);
  dup2(kept, STDOUT_FILENO);
  close(kept);
  keep_going_without_reader();  // on the restored stream
  std::signal(SIGPIPE, SIG_DFL);
  const std::string note =
      "warning: the reader of the standard output is gone; the run continues, and this file is its log";
  EXPECT_EQ(lines("log.txt"), (std::vector<std::string>{"before", "while", note, "after"}));
  EXPECT_EQ(lines("next.txt"), (std::vector<std::string>{"later", note, "last"}));
}

TEST_F(RunLogFiles, MetricsLinesCarryTheIntervalsMeans) {
  RunLogOptions with_memory = options();
  int64_t bytes = 1000;
  with_memory.memory_bytes = 500;
  with_memory.memory_now = [&] { return bytes; };
  RunLog log(with_memory);
  bytes = 1700;
  StepRecord first = record(1, 4, 300), second = record(2, 2, 100);
  first.phases = {0.1, 0.2, 0.05, 0.15};
  second.phases = {0.1, 0.1, 0.05, 0.25};
  log.step(first);
  EXPECT_TRUE(lines("metrics.jsonl").empty()) << "only at the interval";
  log.step(second);
  log.evaluation({2, 3.0, 50, 0.1, true});
  const auto metrics = lines("metrics.jsonl");
  ASSERT_EQ(metrics.size(), 2u);
  const auto j = nlohmann::json::parse(metrics[0]);
  EXPECT_EQ(j["step"], 2);
  EXPECT_DOUBLE_EQ(j["loss"], 2);
  EXPECT_DOUBLE_EQ(j["loss_mean"], 3.5) << "weighted by tokens";
  EXPECT_DOUBLE_EQ(j["tokens_per_second"], 400);
  EXPECT_DOUBLE_EQ(j["flops_per_second"], 400000);
  const std::map<std::string, double> seconds = {
      {"step", 0.5}, {"data", 0.1}, {"forward_backward", 0.15}, {"reduction", 0.05}, {"optimizer", 0.2}};
  for (const auto& [name, mean] : seconds) EXPECT_DOUBLE_EQ(j["seconds"][name], mean) << name << ", of a step";
  for (const char* key : {"grad_norm", "learning_rate", "tokens", "wall_time", "ranks"}) {
    EXPECT_TRUE(j.contains(key)) << key;
  }
  EXPECT_EQ(j["memory"], 1700);
  EXPECT_EQ(j["memory_libraries"], 1000) << "before the rest";
  EXPECT_EQ(j["memory_planned"], 500);
  EXPECT_NEAR(nlohmann::json::parse(metrics[1])["perplexity"], std::exp(3.0), 1e-9);
}

std::vector<double> column(const fs::path& file, const std::string& path) {
  const hid_t f = H5Fopen(file.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT);
  EXPECT_GE(f, 0);
  const hid_t d = H5Dopen2(f, path.c_str(), H5P_DEFAULT);
  EXPECT_GE(d, 0) << path;
  const hid_t space = H5Dget_space(d);
  std::vector<double> values(static_cast<size_t>(H5Sget_simple_extent_npoints(space)));
  EXPECT_GE(H5Dread(d, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()), 0);
  EXPECT_GT(H5Aexists(d, "units"), 0) << path;
  H5Sclose(space);
  H5Dclose(d);
  H5Fclose(f);
  return values;
}

// A job script's reason is kept with a checkpoint and without.
TEST_F(RunLogFiles, MetricsLinesHaveTheReasonOfARestart) {
  RunLogOptions o = options();
  o.run.restart = "n2 hangs";
  RunLog(o).step(record(2, 2.5, 10));
  EXPECT_EQ(lines("metrics.jsonl").front(),
            R"({"resumed_from_step":0,"wall_time":0.0,"ranks":1,"restart":"n2 hangs"})");
  o.resumed = LogState{};
  o.resumed_step = 2;
  const RunLog resumed(o);
  EXPECT_EQ(lines("metrics.jsonl").back(), R"({"resumed_from_step":2,"wall_time":0.0,"ranks":1,"restart":"n2 hangs"})");
}

TEST_F(RunLogFiles, Hdf5HasEquallyLongColumns) {
  RunLog log(options());
  for (int64_t s = 1; s <= 4; ++s) log.step(record(s, 1.0 / static_cast<double>(s), 10));
  log.evaluation({4, 0.25, 10, 0.1, true});
  log.finish("finished");
  EXPECT_EQ(column(folder / "metrics.h5", "/train/step"), (std::vector<double>{2, 4}));
  EXPECT_EQ(column(folder / "metrics.h5", "/train/loss"), (std::vector<double>{0.5, 0.25}));
  EXPECT_EQ(column(folder / "metrics.h5", "/validation/loss"), (std::vector<double>{0.25}));
  for (const char* name : {"wall_time", "grad_norm", "learning_rate", "tokens", "tokens_per_second"}) {
    EXPECT_EQ(column(folder / "metrics.h5", std::string("/train/") + name).size(), 2u) << name;
  }
}

SystemRecord measured(const std::string& host, double value) {
  SystemRecord system;
  system.values = {{"system/" + host + "/cpu_percent", "", value}, {"ranks/step_seconds/max", "", value / 10}};
  return system;
}

// The nodes of a run may change: each has columns of its own, which are NaN where the node was not there.
TEST_F(RunLogFiles, Hdf5HasTheValuesOfNodesAndRanks) {
  RunLogOptions o = options();
  o.total_steps = 6;
  std::optional<LogState> saved;
  const auto text_of = [&](const std::string& path) {
    return fmt::format("{}", fmt::join(column(folder / "metrics.h5", path), " "));
  };
  {
    RunLog log(o);
    for (int64_t s = 1; s <= 3; ++s) log.step(record(s, 1, 10), measured("one", 50));
    saved = log.save();
    log.step(record(4, 1, 10), measured("two", 60));
    log.finish("finished");
    EXPECT_EQ(text_of("/system/step"), "2 4");
    EXPECT_EQ(text_of("/system/one/cpu_percent"), "50 nan");
    EXPECT_EQ(text_of("/system/two/cpu_percent"), "nan 60");
    EXPECT_EQ(text_of("/ranks/step_seconds/max"), "5 6");
    EXPECT_EQ(text_of("/train/samples_per_second").size(), 3u);
  }
  o.resumed = saved;
  o.resumed_step = 3;
  RunLog log(o);
  for (int64_t s = 4; s <= 6; ++s) log.step(record(s, 1, 10), s == 6 ? SystemRecord{} : measured("three", 70));
  log.finish("finished");
  EXPECT_EQ(text_of("/system/step"), "2 4") << "the interval up to step 6 has no sample";
  EXPECT_EQ(text_of("/system/one/cpu_percent"), "50 nan");
  EXPECT_EQ(text_of("/system/three/cpu_percent"), "nan 70");
  EXPECT_EQ(text_of("/train/step"), "2 4 6");
  const MetricsTable table = read_metrics_table(folder / "metrics.h5", "system");
  ASSERT_NE(table.find("three/cpu_percent"), nullptr);
  EXPECT_EQ(table.find("three/cpu_percent")->units, "%");
  EXPECT_EQ(table.find("wall_time")->units, "s");
  EXPECT_EQ(read_metrics_table(folder / "metrics.h5", "none").rows(), 0u) << "control";
}

// Energy and tokens of all jobs of a run add up; steps that are done again count again.
TEST_F(RunLogFiles, EnergyIsThatOfAllJobs) {
  RunLogOptions o = options();
  o.total_steps = 6;
  SystemRecord used;
  const auto joules_and_quotients = [&] {
    return fmt::format("{}", fmt::join(column(folder / "metrics.h5", "/energy/joules"), " ")) + " | " +
           fmt::format("{}", fmt::join(column(folder / "metrics.h5", "/energy/joules_per_token"), " "));
  };
  std::optional<LogState> saved;
  {
    RunLog log(o);
    log.step(record(1, 1, 10));
    used.joules = 100;
    log.step(record(2, 1, 10), used);
    saved = log.save();
    used.joules = 160;
    log.step(record(3, 1, 10));
    log.step(record(4, 1, 10), used);
    log.roll_back({2, 4, 2, 3, "loss"}, *saved);
    used.joules = 240;
    log.step(record(3, 1, 10));
    log.step(record(4, 1, 10), used);
    log.finish("finished");
    EXPECT_EQ(joules_and_quotients(), "100 240 | 5 4");
  }
  o.resumed = saved;
  o.resumed_step = 2;
  used.joules = 50;
  RunLog log(o);
  log.step(record(3, 1, 10));
  log.step(record(4, 1, 10), used);
  log.save();
  EXPECT_EQ(joules_and_quotients(), "100 150 | 5 3.75");
}

TEST(MetricsTables, ColumnsThatJoinAreLimited) {
  MetricsTable table{"system", {}};
  table.add({{"step", "", 1}, {"a", "", 2}}, 3);
  table.add({{"step", "", 2}, {"b", "", 3}, {"c", "", 4}, {"a", "", 5}}, 3);
  ASSERT_EQ(table.columns.size(), 3u);
  EXPECT_EQ(table.find("c"), nullptr);
  EXPECT_EQ(table.find("a")->values, (std::vector<double>{2, 5}));
  EXPECT_EQ(table.find("b")->values.size(), 2u);
}

// The last lines say why a run has ended: they are on the disk, although metrics.h5 is written but now and then.
TEST_F(RunLogFiles, ARunThatAnErrorEndsHasItsLastValuesAndTheReason) {
  RunLog log(options());
  for (int64_t s = 1; s <= 3; ++s) log.step(record(s, 1.0, 10));
  EXPECT_TRUE(column(folder / "metrics.h5", "/train/step").empty()) << "else this shows nothing";
  log.fail("step 3: the loss is not finite");
  EXPECT_EQ(column(folder / "metrics.h5", "/train/step"), (std::vector<double>{2}));
  EXPECT_EQ(lines("log.txt").back(), "step 3: the loss is not finite");
}

TEST_F(RunLogFiles, LossScaleIsInTheLedgerAndTheMetrics) {
  RunLogOptions scaled = options();
  scaled.run.scales_loss = true;
  RunLog log(scaled);
  StepRecord first = record(1, 2.5, 10), second = record(2, 2.25, 10);
  first.scaling = {65536, 1, true};
  first.grad_norm = std::numeric_limits<double>::infinity();
  second.scaling = {32768, 1, false};
  log.step(first);
  log.step(second);
  log.finish("finished");
  const auto ledger = lines("ledger.jsonl");
  EXPECT_EQ(ledger[0], R"({"step":1,"learning_rate":"0x1p-10","loss":"0x1.4p+1","grad_norm":"inf","tokens":10,)"
                       R"("samples":"0000000000000abc","loss_scale":"0x1p+16","skipped_steps":1})");
  EXPECT_EQ(ledger[1], R"({"step":2,"learning_rate":"0x1p-10","loss":"0x1.2p+1","grad_norm":"0x1.8p+0","tokens":10,)"
                       R"("samples":"0000000000000abc","loss_scale":"0x1p+15"})");
  const auto j = nlohmann::json::parse(lines("metrics.jsonl")[0]);
  EXPECT_EQ(j["loss_scale"], 32768);
  EXPECT_EQ(j["skipped_steps"], 1);
  EXPECT_EQ(column(folder / "metrics.h5", "/train/loss_scale"), (std::vector<double>{32768}));
  EXPECT_EQ(column(folder / "metrics.h5", "/train/skipped_steps"), (std::vector<double>{1}));
}

TEST_F(RunLogFiles, Hdf5OpensWheneverTheWriterIsKilled) {
  const std::string path = (folder / "metrics.h5").string();
  MetricsTable table{"train", {{"step", "1", {}}}};
  for (double s = 0; s < 20000; ++s) table.add({s});
  write_metrics_hdf5(path, {table});
  int torn = 0;
  for (int kill_after = 0; kill_after < 12; ++kill_after) {
    const pid_t child = fork();
    if (child == 0) {
      while (true) write_metrics_hdf5(path, {table});
    }
    usleep(static_cast<useconds_t>(2000 + 1500 * kill_after));
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    EXPECT_EQ(column(path, "/train/step").size(), 20000u);
    torn += fs::exists(path + ".tmp") ? 1 : 0;
  }
  EXPECT_GT(torn, 0) << "no kill fell into a write: the test proves nothing";
}

TEST_F(RunLogFiles, AFullDiskIsAnErrorThatNamesTheFile) {
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, SIG_IGN);
  AppendFile file((folder / "ledger.jsonl").string());
  const rlimit small{100, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  try {
    for (int i = 0; i < 3; ++i) file.append(std::string(60, 'x'));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::io);
    EXPECT_NE(std::string(error.what()).find("ledger.jsonl"), std::string::npos);
  }
  setrlimit(RLIMIT_FSIZE, &old);
}

TEST_F(RunLogFiles, AnHdf5FileThatCannotBeMadeSaysWhy) {
  rlimit old{};
  getrlimit(RLIMIT_NOFILE, &old);
  const rlimit none{0, old.rlim_max};
  const std::string path = (folder / "metrics.h5").string();
  setrlimit(RLIMIT_NOFILE, &none);
  try {
    write_metrics_hdf5(path, {});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::io);
    EXPECT_EQ(error.what(), path + ".tmp: HDF5 cannot write it: Too many open files");
  }
  setrlimit(RLIMIT_NOFILE, &old);
}

TEST_F(RunLogFiles, OfStepsLeftOutThereIsNoLoss) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  RunLog log(options());
  StepRecord bad = record(2, 3.5, 300);
  bad.grad_norm = 1e36;
  bad.bad_steps = 1;
  bad.problem = "the gradient norm is a spike";
  log.step(bad);
  const std::string printed = testing::internal::GetCapturedStdout();
  EXPECT_NE(printed.find("loss skipped  lr 9.77e-04  norm 1.000e+36 "), std::string::npos) << printed;
  const std::string warned = testing::internal::GetCapturedStderr();
  EXPECT_NE(warned.find("(loss 3.5000, gradient norm 1.0000e+36)"), std::string::npos) << warned;
}

TEST_F(RunLogFiles, AStepWithoutATargetHasNoLossAndCountsInNoMean) {
  const auto run = [&](const std::vector<int64_t>& tokens) {
    testing::internal::CaptureStdout();
    RunLog log(options());
    for (size_t s = 0; s < tokens.size(); ++s) {
      log.step(record(static_cast<int64_t>(s) + 1, tokens[s] > 0 ? 2.0 * static_cast<double>(s + 1) : -0.0, tokens[s]));
    }
    const LogState state = log.save();
    log.finish("finished");
    EXPECT_EQ(state.counters.at("log_last_loss_step"), 3);
    return testing::internal::GetCapturedStdout();
  };
  const std::string printed = run({0, 0, 100, 0});
  EXPECT_NE(printed.find("step 2/4  50%  loss no targets  lr"), std::string::npos) << printed;
  EXPECT_NE(printed.find("step 4/4 100%  loss 6.0000  lr"), std::string::npos) << printed;
  EXPECT_NE(printed.find("training loss       6.0000 at step 3, the last step with a target"), std::string::npos);
  const auto ledger = lines("ledger.jsonl");
  EXPECT_NE(ledger[0].find(R"("loss":null,"grad_norm":"0x1.8p+0","tokens":0,)"), std::string::npos) << ledger[0];
  EXPECT_NE(ledger[2].find(R"("loss":"0x1.8p+2","grad_norm")"), std::string::npos) << ledger[2];
  const auto first = nlohmann::json::parse(lines("metrics.jsonl")[0]);
  const auto second = nlohmann::json::parse(lines("metrics.jsonl")[1]);
  EXPECT_TRUE(first["loss"].is_null() && first["loss_mean"].is_null()) << first;
  EXPECT_TRUE(second["loss"].is_null()) << second;
  EXPECT_EQ(second["loss_mean"], 6.0);
  EXPECT_TRUE(std::isnan(column(folder / "metrics.h5", "/train/loss")[0]));
  EXPECT_EQ(column(folder / "metrics.h5", "/train/loss_mean")[1], 6.0);
  // The control: with a target, the loss is printed.
  fs::remove(folder / "ledger.jsonl");
  EXPECT_EQ(run({1, 0, 100}).find("no targets"), std::string::npos);
  EXPECT_EQ(lines("ledger.jsonl")[0].find("null"), std::string::npos);
}

TEST_F(RunLogFiles, LogTextIsTheConsoleWithoutEscapes) {
  testing::internal::CaptureStdout();
  {
    RunLog log(options());
    log.print("opening");
    log.step(record(1, 4, 300));
    log.step(record(2, 2, 100));
    log.samples({2, {{"Once", " upon\na time"}}, 0.5});
  }
  const std::string printed = testing::internal::GetCapturedStdout();
  std::ostringstream logged;
  for (const std::string& line : lines("log.txt")) logged << line << '\n';
  EXPECT_EQ(printed, logged.str());
  EXPECT_EQ(printed.find('\033'), std::string::npos);
  EXPECT_NE(printed.find("step 2/4"), std::string::npos) << printed;
  EXPECT_NE(printed.find("loss 3.5000"), std::string::npos) << printed;
  EXPECT_NE(printed.find("| Once upon\n  | a time"), std::string::npos) << printed;
}

}  // namespace
}  // namespace llmtrain
