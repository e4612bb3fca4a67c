#include "train/step_profile.hpp"

#include <gtest/gtest.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "parallel/local_communicator.hpp"

namespace llmtrain {
namespace {

/// step [0, 100): forward [5, 45) with a kernel [10, 40), in it a kernel [20, 25); sum [50, 80); forward [85, 95).
std::vector<Span> some_spans() {
  return {{"step", SpanKind::phase, -1, 0, 100, {}, 0},           {"forward", SpanKind::phase, 0, 5, 45, {}, 0},
          {"product", SpanKind::kernel, 1, 10, 40, {300, 60}, 0}, {"cast", SpanKind::kernel, 2, 20, 25, {0, 10}, 0},
          {"sum", SpanKind::communication, 0, 50, 80, {0, 8}, 7}, {"forward", SpanKind::phase, 0, 85, 95, {}, 0}};
}

TEST(StepProfile, RowsAddUpToTheStep) {
  const std::vector<ProfileRow> rows = profile_rows(some_spans());
  ASSERT_EQ(rows.size(), 5);
  const auto expect = [&](size_t i, const char* phase, const char* part, int64_t calls, int64_t time) {
    EXPECT_EQ(rows[i].phase, phase);
    EXPECT_EQ(rows[i].part, part);
    EXPECT_EQ(rows[i].calls, calls) << part;
    EXPECT_EQ(rows[i].nanoseconds, time) << part;
  };
  expect(0, "step", "sum", 1, 30);
  expect(1, "step", "other", 1, 20);
  expect(2, "forward", "product", 1, 25);
  expect(3, "forward", "other", 2, 20);
  expect(4, "forward", "cast", 1, 5);
  int64_t total = 0;
  for (const ProfileRow& row : rows) total += row.nanoseconds;
  EXPECT_EQ(total, 100);
  EXPECT_EQ(rows[2].work.flops, 300);
}

// Two steps: half the times and calls. product: 300 flops in 25 ns are 12 GFLOP/s, a quarter of 48; 60 bytes are 2.4
// GB/s, a tenth of 24. cast: 10 bytes in 5 ns are 2 GB/s.
TEST(StepProfile, TableHasSpeedsAndSharesOfTheLimitThatBinds) {
  const std::string table = profile_table(some_spans(), 2, {.flops = 48e9, .bytes = 24e9});
  std::vector<std::vector<std::string>> lines;
  std::istringstream text(table);
  for (std::string line; std::getline(text, line);) {
    std::istringstream words(line);
    lines.emplace_back(std::istream_iterator<std::string>(words), std::istream_iterator<std::string>());
  }
  using Line = std::vector<std::string>;
  ASSERT_EQ(lines.size(), 7);
  EXPECT_EQ(lines[0], (Line{"phase", "part", "calls", "ms/step", "share", "GFLOP/s", "GB/s", "of", "limit"}));
  EXPECT_EQ(lines[1], (Line{"step", "sum", "0.5", "0.000", "30.0", "%"})) << "communication has no speed here";
  EXPECT_EQ(lines[3], (Line{"forward", "product", "0.5", "0.000", "25.0", "%", "12.0", "2.4", "25", "%"}));
  EXPECT_EQ(lines[4], (Line{"forward", "other", "1", "0.000", "20.0", "%"}));
  EXPECT_EQ(lines[5], (Line{"forward", "cast", "0.5", "0.000", "5.0", "%", "2.0", "8", "%"}));
  EXPECT_EQ(lines[6], (Line{"total", "0.000", "100.0", "%", "3.0", "6", "%"})) << "300 flops in 100 ns";

  std::vector<Span> slow = some_spans();
  for (Span& s : slow) s.begin *= 1000000, s.end *= 1000000;
  EXPECT_NE(profile_table(slow, 2, {}).find("12.500"), std::string::npos) << "25 ms in two steps";
}

TEST(StepProfile, ColumnsWidenWithTheirNumbers) {
  std::vector<Span> large = some_spans();
  for (Span& s : large) s.begin *= 1000000000000, s.end *= 1000000000000, s.work.flops *= 1e30, s.work.bytes *= 1e30;
  large[2].name = "a_product_with_a_name_of_its_own";
  std::istringstream text(profile_table(large, 2, {.flops = 1e9, .bytes = 1e9}));
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 7);
  for (const std::string& line : lines) EXPECT_EQ(line.size(), lines[0].size()) << line;
  // Each title ends where the numbers below it end, preceded by a blank.
  for (const char* title : {"calls", "ms/step", "share", "GFLOP/s", "GB/s"}) {
    const size_t end = lines[0].find(title) + std::string(title).size();
    EXPECT_EQ(lines[3][end], ' ') << title;
    EXPECT_NE(lines[3][end - 1], ' ') << title;
  }
  EXPECT_NE(lines[3].find("12500000.000 "), std::string::npos) << lines[3];
}

TEST(StepProfile, WaitingEndsWhenTheLastRankHasGivenItsPart) {
  const auto time = [](std::vector<Post> posts) { return communication_time(some_spans(), posts); };
  EXPECT_EQ(time({{7, 48}, {7, 62}, {6, 99}}).exposed, 30);
  EXPECT_EQ(time({{7, 48}, {7, 62}, {6, 99}}).waiting, 12);
  EXPECT_EQ(time({{7, 48}, {7, 49}}).waiting, 0) << "everybody was there before";
  EXPECT_EQ(time({{7, 48}, {7, 500}}).waiting, 30) << "no more than the time inside";
  EXPECT_EQ(time({}).waiting, 0);
}

TEST(StepProfile, TraceIsJsonWithChromesFields) {
  const auto events = nlohmann::json::parse("[" + trace_events(some_spans(), 3, -1000) + "]");
  ASSERT_EQ(events.size(), 6);
  const auto& product = events[2];
  EXPECT_EQ(product["name"], "product");
  EXPECT_EQ(product["cat"], "kernel");
  EXPECT_EQ(product["ph"], "X");
  EXPECT_EQ(product["pid"], 3);
  EXPECT_EQ(product["tid"], 0);
  EXPECT_DOUBLE_EQ(product["ts"].get<double>(), 1.01);
  EXPECT_DOUBLE_EQ(product["dur"].get<double>(), 0.03);
  EXPECT_EQ(product["args"]["flops"], 300);
  EXPECT_EQ(product["args"]["bytes"], 60);
  EXPECT_EQ(events[4]["args"]["sequence"], 7);
}

TEST(StepProfile, TheFirstStepIsLeftOutWhereThereAreOthers) {
  const auto recorded = [](int64_t wanted, int64_t steps) {
    Stream stream;
    const auto alone = make_local_communicator();
    StepProfile profile(wanted, steps);
    std::string which;
    for (int64_t n = 0; n < steps; ++n) {
      profile.begin_step(n, stream);
      which += Recorder::current() != nullptr ? 'r' : '-';
      profile.end_step(*alone);
      if (profile.due()) which += '!';
      if (profile.due()) break;
    }
    return which;
  };
  EXPECT_EQ(recorded(2, 5), "-rr!");
  EXPECT_EQ(recorded(5, 5), "rrrrr!");
  EXPECT_EQ(recorded(9, 2), "rr!");
  EXPECT_EQ(recorded(0, 3), "---");
  Stream stream;
  const auto alone = make_local_communicator();
  StepProfile profile(5, 9);
  const auto steps = [&](int n) {
    for (int i = 0; i < n; ++i) {
      profile.begin_step(i, stream);
      profile.end_step(*alone);
    }
  };
  steps(1);
  EXPECT_FALSE(profile.due(true)) << "a run that ends with the step that is left out";
  steps(2);
  EXPECT_FALSE(profile.due());
  EXPECT_TRUE(profile.due(true)) << "a run that ends before all are recorded";
}

TEST(StepProfile, EndsWhereATraceCouldNotBeShown) {
  Stream stream;
  const auto alone = make_local_communicator();
  StepProfile profile(5, 5);
  const auto step = [&](size_t spans) {
    profile.begin_step(0, stream);
    for (size_t i = 0; i < spans; ++i) const ProfileSpan span(SpanKind::phase, "part");
    profile.end_step(*alone);
  };
  step(Recorder::max_spans - 1);
  EXPECT_FALSE(profile.due());
  step(1);
  EXPECT_TRUE(profile.due());
}

TEST(StepProfile, LimitsAreThoseOfAMachine) {
  Stream stream;
  const MachineLimits limits = measure_limits(DType::f32, 4, stream);
  EXPECT_GT(limits.flops, 1e7);
  EXPECT_GT(limits.bytes, 1e6);
}

}  // namespace
}  // namespace llmtrain
