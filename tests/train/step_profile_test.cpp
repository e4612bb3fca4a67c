#include "train/step_profile.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

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
    StepProfile profile(wanted, steps);
    std::string which;
    for (int64_t n = 0; n < steps; ++n) {
      profile.begin_step(n, stream);
      which += Recorder::current() != nullptr ? 'r' : '-';
      profile.end_step();
      if (profile.due()) which += '!';
      if (profile.due()) break;
    }
    return which;
  };
  EXPECT_EQ(recorded(2, 5), "-rr!");
  EXPECT_EQ(recorded(5, 5), "rrrrr!");
  EXPECT_EQ(recorded(9, 2), "rr!");
  EXPECT_EQ(recorded(0, 3), "---");
}

TEST(StepProfile, LimitsAreThoseOfAMachine) {
  Stream stream;
  const MachineLimits limits = measure_limits(DType::f32, stream);
  EXPECT_GT(limits.flops, 1e7);
  EXPECT_GT(limits.bytes, 1e6);
}

}  // namespace
}  // namespace llmtrain
