// Sinks for other programs: the bytes of their files, and what resumes, rollbacks and kills leave of them. What the
// programs themselves read: tensorboard_oracle.py, wandb_oracle.py.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <tensorboard.pb.h>
#include <wandb.pb.h>

#include <csignal>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "harness/temporary_folder.hpp"
#include "metrics/event_file.hpp"
#include "metrics/run_log.hpp"
#include "metrics/scalars.hpp"
#include "metrics/sink.hpp"
#include "metrics/wandb_log.hpp"

namespace llmtrain {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Points = std::vector<std::pair<int64_t, double>>;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

IntervalRecord interval_at(int64_t step, double loss) {
  IntervalRecord record;
  record.last.step = step;
  record.last.grad_norm = 1.5;
  record.last.tokens = 10;
  record.last.metrics = {{"rewards/margins", "", 0.25}};
  record.loss_mean = loss;
  record.grad_norms = {1, 1.5, 2};
  record.system = {{"system/node1.site/cpu_percent", "", 50}};
  return record;
}

EvaluationRecord evaluation_at(int64_t step, double loss) { return {step, loss, 100, 0.1, true}; }

class Sinks : public ::testing::Test {
 protected:
  SinkOptions options() const {
    SinkOptions o;
    o.directory = folder.text();
    o.name = "test";
    o.settings = {{"model", "d_model", "16", true}, {"log", "every_steps", "5", false}, {"run", "task", "sft", true}};
    return o;
  }
  /// Steps 1 to `last`, with an evaluation and samples after every second one.
  static void write_steps(Sink& sink, int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; ++step) {
      const double loss = 1.0 / static_cast<double>(step);
      sink.interval(interval_at(step, loss));
      if (step % 2 != 0) continue;
      sink.evaluation(evaluation_at(step, 2 * loss), 1);
      sink.samples({step, {{"one ", "two\nthree"}, {"", "four"}}, 0.1}, 1);
    }
  }

  test::TemporaryFolder folder;
};

class EventFiles : public Sinks {
 protected:
  std::vector<fs::path> files() const {
    std::vector<fs::path> all;
    for (const auto& entry : fs::directory_iterator(folder / "tensorboard")) all.push_back(entry.path());
    std::ranges::sort(all);
    return all;
  }
  std::vector<tensorboard::Event> events() const {
    std::vector<tensorboard::Event> all;
    for (const fs::path& file : files()) {
      read_events(file, [&](std::string_view payload, int64_t) {
        all.emplace_back();
        EXPECT_TRUE(all.back().ParseFromArray(payload.data(), static_cast<int>(payload.size())));
        return true;
      });
    }
    return all;
  }
  Points points(const std::string& tag) const {
    Points all;
    for (const tensorboard::Event& event : events()) {
      for (const auto& value : event.summary().value()) {
        if (value.tag() == tag) all.emplace_back(event.step(), value.simple_value());
      }
    }
    return all;
  }
  static Points losses(int64_t last, double factor = 1, int64_t every = 1) {
    Points all;
    for (int64_t step = every; step <= last; step += every)
      all.emplace_back(step, static_cast<float>(factor / static_cast<double>(step)));
    return all;
  }
};

// From RFC 3720, B.4, with TensorFlow's mask.
TEST_F(EventFiles, ChecksumsAreThoseOfTensorFlow) {
  EXPECT_EQ(masked_crc32c("123456789"), 0xc78ab0e5u);
  EXPECT_EQ(masked_crc32c(std::string(32, '\0')), 0x0fd7fffau);
}

TEST_F(EventFiles, HaveScalarsTextsHistogramsAndHyperparameters) {
  const auto sink = make_sink(LogConfig::Sink::tensorboard, options());
  write_steps(*sink, 1, 2);
  sink->end(true);
  const auto all = events();
  ASSERT_GE(all.size(), 4u);
  EXPECT_EQ(all[0].file_version(), "brain.Event:2") << "the first of a file";
  EXPECT_EQ(all[1].session_log().status(), tensorboard::SessionLog::START);
  const auto& start = all[2].summary().value(0);
  EXPECT_EQ(start.tag(), "_hparams_/session_start_info");
  tensorboard::HParamsPluginData data;
  ASSERT_TRUE(data.ParseFromString(start.metadata().plugin_data().content()));
  const auto& hparams = data.session_start_info().hparams();
  EXPECT_EQ(hparams.size(), 2u) << "not what only concerns the output";
  EXPECT_EQ(hparams.at("model.d_model").number_value(), 16);
  EXPECT_EQ(hparams.at("run.task").string_value(), "sft");
  EXPECT_EQ(points("train/loss"), losses(2));
  EXPECT_EQ(points("train/rewards/margins"), (Points{{1, 0.25}, {2, 0.25}}));
  EXPECT_EQ(points("system/node1.site/cpu_percent"), (Points{{1, 50}, {2, 50}}));
  EXPECT_EQ(points("validation/loss"), (Points{{2, 1}}));
  std::string text;
  for (const auto& event : all) {
    for (const auto& value : event.summary().value()) {
      if (value.tag() == "samples/1") text = value.tensor().string_val(0);
      if (value.tag() == "histograms/grad_norm") {
        EXPECT_EQ(value.histo().num(), 3);
      }
    }
  }
  EXPECT_EQ(text, "    one two\n    three") << "Markdown that shows it as it is";
  EXPECT_EQ(all.back().summary().value(0).tag(), "_hparams_/session_end_info");
}

TEST_F(EventFiles, RotateBySizeAndAreReadInOrder) {
  SinkOptions small = options();
  small.event_file_bytes = 2000;
  const auto sink = make_sink(LogConfig::Sink::tensorboard, small);
  write_steps(*sink, 1, 20);
  EXPECT_GT(files().size(), 3u);
  EXPECT_EQ(points("train/loss"), losses(20));
  // A rollback removes files of later steps, too.
  sink->roll_back({3, 20, 3, 20, "test"}, {}, 1);
  write_steps(*sink, 4, 6);
  EXPECT_EQ(points("train/loss"), losses(6));
}

TEST_F(EventFiles, AResumedRunHasEveryStepOnce) {
  write_steps(*make_sink(LogConfig::Sink::tensorboard, options()), 1, 7);
  const auto sink = make_sink(LogConfig::Sink::tensorboard, options());
  sink->resume(4, {}, 1);
  write_steps(*sink, 5, 6);
  EXPECT_EQ(points("train/loss"), losses(6));
  EXPECT_EQ(points("validation/loss"), losses(6, 2, 2));
  EXPECT_EQ(points("samples/1").size(), 3u);
  EXPECT_EQ(files().size(), 2u);
  // When the session begins, a TensorBoard drops the steps from 4 on that it has read already.
  std::vector<int64_t> starts;
  for (const auto& event : events()) {
    if (event.has_session_log()) starts.push_back(event.step());
  }
  EXPECT_THAT(starts, ElementsAre(0, 4));
}

TEST_F(EventFiles, PendingWorkIsThereOnce) {
  write_steps(*make_sink(LogConfig::Sink::tensorboard, options()), 1, 4);
  const auto sink = make_sink(LogConfig::Sink::tensorboard, options());
  sink->resume(4, {true, true}, 1);
  EXPECT_EQ(points("validation/loss"), losses(2, 2, 2));
  sink->evaluation(evaluation_at(4, 0.5), 1);
  sink->samples({4, {{"a", "b"}}, 0.1}, 1);
  EXPECT_EQ(points("train/loss"), losses(4));
  EXPECT_EQ(points("validation/loss"), losses(4, 2, 2));
  EXPECT_EQ(points("samples/1").size(), 2u);
}

TEST_F(EventFiles, AKillWhileASessionBeginsLosesNothing) {
  write_steps(*make_sink(LogConfig::Sink::tensorboard, options()), 1, 6);
  const fs::path first = files().front();
  const std::string uncut = read_file(first);
  make_sink(LogConfig::Sink::tensorboard, options())->resume(4, {}, 1);
  write_file(first, uncut);  // as if the job had been killed before it cut the file
  const auto sink = make_sink(LogConfig::Sink::tensorboard, options());
  sink->resume(4, {}, 1);
  write_steps(*sink, 5, 5);
  EXPECT_EQ(points("train/loss"), losses(5));
  EXPECT_EQ(points("validation/loss"), losses(4, 2, 2));
}

// Whatever part of the last record is on the disk.
TEST_F(EventFiles, AKillAtAnyByteLosesNothingElse) {
  {
    const auto sink = make_sink(LogConfig::Sink::tensorboard, options());
    write_steps(*sink, 1, 3);
  }
  const fs::path file = files().front();
  const std::string whole = read_file(file);
  {
    const auto sink = make_sink(LogConfig::Sink::tensorboard, options());
    sink->evaluation(evaluation_at(3, 9), 1);
  }
  const size_t record = read_file(files().back()).size();
  for (size_t cut = 1; cut < record; cut += 3) {
    for (const fs::path& old : files()) fs::remove(old);
    write_file(file, whole + std::string(cut, '\7'));
    const auto sink = make_sink(LogConfig::Sink::tensorboard, options());
    sink->resume(3, {}, 1);
    write_steps(*sink, 4, 4);
    ASSERT_EQ(points("train/loss"), losses(4)) << cut;
  }
}

class WandbFiles : public Sinks {
 protected:
  fs::path file() const {
    std::vector<fs::path> all;
    for (const auto& entry : fs::recursive_directory_iterator(folder / "wandb")) {
      if (entry.path().extension() == ".wandb") all.push_back(entry.path());
    }
    EXPECT_EQ(all.size(), 1u);
    return all.front();
  }
  std::vector<wandb::Record> records() const {
    std::vector<wandb::Record> all;
    read_wandb_log(file(), [&](std::string_view payload) {
      all.emplace_back();
      EXPECT_TRUE(all.back().ParseFromArray(payload.data(), static_cast<int>(payload.size())));
      EXPECT_EQ(all.back().num(), static_cast<int64_t>(all.size()));
    });
    return all;
  }
  std::vector<std::map<std::string, std::string>> rows() const {
    std::vector<std::map<std::string, std::string>> all;
    for (const wandb::Record& record : records()) {
      if (!record.has_history()) continue;
      all.emplace_back();
      for (const auto& item : record.history().item()) all.back()[item.nested_key(0)] = item.value_json();
      EXPECT_EQ(all.back()["_step"], std::to_string(record.history().step().num()));
    }
    return all;
  }
  /// The values of a name in all rows; "-" where a row has none.
  std::vector<std::string> column(const std::string& name) const {
    std::vector<std::string> values;
    for (const auto& row : rows()) values.push_back(row.contains(name) ? row.at(name) : "-");
    return values;
  }
};

// Chunks never cross blocks of 32 KiB, and where less than a chunk's head is left of one, zeros fill it.
TEST_F(WandbFiles, RecordsOfAnySizeFitTheBlocks) {
  const std::string path = folder / "a.wandb";
  std::vector<std::string> written;
  {
    WandbLog log(path);
    for (const size_t size : {0, 5, 32768 - 7 - 7 - 12 - 7 - 3, 1, 40000, 100000, 32768, 32761, 2}) {
      written.emplace_back(size, static_cast<char>('a' + written.size()));
      log.append(written.back());
    }
  }
  std::vector<std::string> read;
  read_wandb_log(path, [&](std::string_view payload) { read.emplace_back(payload); });
  EXPECT_EQ(read, written);
  std::string bytes = read_file(path);
  bytes[bytes.size() - 1] ^= 1;
  write_file(path, bytes);
  read.clear();
  read_wandb_log(path, [&](std::string_view payload) { read.emplace_back(payload); });
  EXPECT_EQ(read.size(), written.size() - 1) << "the damaged one is seen";
}

TEST_F(WandbFiles, BeginWithTheConfigurationAndHaveARowAStep) {
  SinkOptions o = options();
  o.wandb.project = "stories";
  o.wandb.tags = {"a", "b"};
  const auto sink = make_sink(LogConfig::Sink::wandb, o);
  write_steps(*sink, 1, 3);
  sink->end(true);
  const auto all = records();
  EXPECT_TRUE(all[0].has_header());
  EXPECT_EQ(all[1].run().project(), "stories");
  EXPECT_EQ(all[1].run().display_name(), "test");
  EXPECT_EQ(all[1].run().tags_size(), 2);
  EXPECT_EQ(all[1].run().config().update(0).key(), "model");
  EXPECT_EQ(all[1].run().config().update(0).value_json(), R"({"d_model":16})");
  EXPECT_TRUE(all.back().has_exit());
  EXPECT_THAT(column("_step"), ElementsAre("1", "2", "3"));
  EXPECT_THAT(column("validation/loss"), ElementsAre("-", "1", "-"));
  const auto table = nlohmann::json::parse(rows()[1].at("samples"));
  EXPECT_EQ(table["_type"], "table-file");
  const auto content = nlohmann::json::parse(read_file(file().parent_path() / "files" / table["path"]));
  EXPECT_EQ(content["data"][0], (nlohmann::json{2, "one ", "two\nthree"}));
}

TEST_F(WandbFiles, ResumedJobsAreOneRun) {
  std::string id;
  for (const int64_t from : {0, 3, 4, 4, 6}) {
    const auto sink = make_sink(LogConfig::Sink::wandb, options());
    if (from > 0) sink->resume(from, {from == 4, from == 4}, 1);
    if (from == 4) {
      sink->evaluation(evaluation_at(4, 0.5), 1);
      sink->samples({4, {{"a", "b"}}, 0.1}, 1);
    }
    write_steps(*sink, from + 1, from + 3);
    sink->end(from == 3);  // a finished run that goes on
    sink->sync();
    EXPECT_TRUE(id.empty() || id == records()[1].run().run_id());
    id = records()[1].run().run_id();
    write_file(file().string() + ".synced", "");
  }
  EXPECT_THAT(column("_step"), ElementsAre("1", "2", "3", "4", "5", "6", "7", "8", "9"));
  EXPECT_THAT(column("validation/loss"),
              ElementsAre("-", "1", "-", "0.5", "-", "0.3333333333333333", "-", "0.25", "-"));
  for (const auto& record : records()) EXPECT_FALSE(record.has_exit()) << "the run goes on";
}

TEST_F(WandbFiles, ARollbackAndATornRecordLeaveEveryStepOnce) {
  const auto sink = make_sink(LogConfig::Sink::wandb, options());
  write_steps(*sink, 1, 6);
  write_file(file().string() + ".synced", "");
  sink->roll_back({2, 6, 2, 6, "test"}, {}, 1);
  write_steps(*sink, 3, 4);
  sink->sync();
  EXPECT_FALSE(fs::exists(file().string() + ".synced")) << "what is new needs a sync";
  EXPECT_THAT(column("_step"), ElementsAre("1", "2", "3", "4"));
  write_file(file(), read_file(file()) + std::string(50, '\1'));
  const auto next = make_sink(LogConfig::Sink::wandb, options());
  next->resume(4, {}, 1);
  write_steps(*next, 5, 5);
  next->sync();
  EXPECT_THAT(column("_step"), ElementsAre("1", "2", "3", "4", "5"));
  // `wandb clean` removes what was synced: the run goes on under its ID.
  const std::string id = records()[1].run().run_id();
  fs::remove_all(file().parent_path());
  const auto last = make_sink(LogConfig::Sink::wandb, options());
  last->resume(5, {}, 1);
  write_steps(*last, 6, 6);
  last->sync();
  EXPECT_EQ(records()[1].run().run_id(), id);
  EXPECT_THAT(column("_step"), ElementsAre("6"));
}

class FailingSinks : public Sinks {
 protected:
  RunLogOptions log_options() const {
    RunLogOptions o;
    o.run.directory = folder.text();
    o.total_steps = 16;
    o.every_steps = 1;
    o.sinks = {LogConfig::Sink::hdf5, LogConfig::Sink::jsonl, LogConfig::Sink::tensorboard, LogConfig::Sink::wandb};
    return o;
  }
  /// Returns the warnings of 16 steps.
  std::string run() const {
    testing::internal::CaptureStderr();
    testing::internal::CaptureStdout();
    {
      RunLog log(log_options());
      for (int64_t step = 1; step <= 16; ++step) {
        StepRecord record;
        record.step = step;
        record.tokens = 10;
        record.seconds = 0.1;
        log.step(record);
      }
      log.save();
      log.finish("finished");
    }
    testing::internal::GetCapturedStdout();
    return testing::internal::GetCapturedStderr();
  }
  static size_t count(const std::string& text, const std::string& part) {
    size_t found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  }
};

TEST_F(FailingSinks, AnUnusableFolderIsAWarning) {
  write_file(folder / "tensorboard", "a file");
  write_file(folder / "wandb", "a file");
  fs::create_directory(folder / "log.txt");
  const std::string warnings = run();
  EXPECT_EQ(count(warnings, "log.txt: cannot be opened for writing"), 1u) << warnings;
  EXPECT_EQ(count(warnings, "the run continues without tensorboard"), 1u) << warnings;
  EXPECT_EQ(count(warnings, "the run continues without wandb"), 1u) << warnings;
  EXPECT_EQ(count(read_file(folder / "metrics.jsonl"), "\n"), 16u) << "other sinks go on";
}

TEST_F(FailingSinks, AFullDiskEndsSinksButNotTheRun) {
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{6000, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const std::string warnings = run();
  setrlimit(RLIMIT_FSIZE, &old);
  for (const char* sink : {"hdf5", "tensorboard", "wandb"}) {
    EXPECT_EQ(count(warnings, std::string("the run continues without ") + sink), 1u) << warnings;
  }
  EXPECT_EQ(count(read_file(folder / "ledger.jsonl"), "\n"), 16u);
}

// The ledger knows nothing of the sinks.
TEST_F(FailingSinks, LedgersAreTheSameWithAnySinks) {
  EXPECT_EQ(run(), "");
  const std::string all = read_file(folder / "ledger.jsonl");
  for (const char* name : {"ledger.jsonl", "tensorboard", "wandb"}) fs::remove_all(folder / name);
  write_file(folder / "tensorboard", "a file");
  EXPECT_THAT(run(), HasSubstr("without tensorboard"));
  EXPECT_EQ(read_file(folder / "ledger.jsonl"), all);
  EXPECT_FALSE(all.empty());
}

TEST_F(Sinks, ReportsAreWrittenAtTheFirstIntervalAndAtTheEnd) {
  const auto lines = make_sink(LogConfig::Sink::jsonl, options());
  const auto report = make_sink(LogConfig::Sink::html, options());
  const auto step = [&](int64_t number) {
    lines->interval(interval_at(number, 1));
    report->interval(interval_at(number, 1));
    return read_file(folder / "report/report.html");
  };
  const std::string first = step(1);
  EXPECT_THAT(first, HasSubstr("</html>"));
  EXPECT_EQ(step(2), first) << "then after a minute";
  report->end(true);
  EXPECT_NE(read_file(folder / "report/report.html"), first);
}

TEST(Histograms, CountFiniteValues) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const Histogram histogram = histogram_of({0, 1, 1.9, 4, infinity, std::nan("")}, 4);
  EXPECT_THAT(histogram.edges, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(histogram.counts, ElementsAre(1, 2, 0, 1));
  EXPECT_THAT(histogram_of({2, 2}, 4).counts, ElementsAre(2)) << "no width";
  EXPECT_EQ(histogram_of({infinity}, 4).count, 0);
}

TEST(LogIntervals, TheFirstStepIsOneIfAsked) {
  for (const bool first : {false, true}) {
    const test::TemporaryFolder folder;
    RunLogOptions options;
    options.run.directory = folder.text();
    options.total_steps = 4;
    options.every_steps = 2;
    options.every_first = first;
    testing::internal::CaptureStdout();
    {
      RunLog log(options);
      for (int64_t step = 1; step <= 4; ++step) {
        StepRecord record;
        record.step = step;
        log.step(record);
      }
      log.samples({4, {{"a\xFF", "b"}}, 0});
    }
    testing::internal::GetCapturedStdout();
    std::ifstream file(folder / "metrics.jsonl");
    std::vector<int64_t> steps;
    std::string last;
    for (std::string line; std::getline(file, line); last = line) steps.push_back(nlohmann::json::parse(line)["step"]);
    EXPECT_EQ(steps, first ? (std::vector<int64_t>{1, 2, 4, 4}) : (std::vector<int64_t>{2, 4, 4}));
    EXPECT_THAT(last, HasSubstr("\"prompt\":\"a\xEF\xBF\xBD\",\"sample\":\"b\""));
  }
}

}  // namespace
}  // namespace llmtrain
