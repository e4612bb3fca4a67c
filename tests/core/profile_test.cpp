#include "core/profile.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <utility>

#include "core/activity.hpp"

namespace llmtrain {
namespace {

TEST(Profile, NothingIsRecordedOrAskedWithoutARecorder) {
  bool asked = false;
  const auto work = [&] {
    asked = true;
    return Work{1, 1};
  };
  Recorder recorder;
  { const ProfileSpan span("kernel", work); }
  EXPECT_TRUE(recorder.spans.empty());
  EXPECT_FALSE(asked);
  recorder.start();
  { const ProfileSpan span("kernel", work); }
  recorder.stop();
  { const ProfileSpan span("kernel", work); }
  ASSERT_EQ(recorder.spans.size(), 1);
  EXPECT_TRUE(asked);
  EXPECT_EQ(recorder.spans[0].work.flops, 1);
}

TEST(Profile, SpansNest) {
  Recorder recorder;
  recorder.start();
  {
    ProfileSpan outer(SpanKind::phase, "outer");
    {
      const ProfileSpan kernel("kernel", [] { return Work{}; });
    }
    outer.next("second");
    { const CollectiveScope sum("sum", 64); }
  }
  { const ProfileSpan last(SpanKind::phase, "last"); }
  recorder.stop();
  ASSERT_EQ(recorder.spans.size(), 5);
  const auto expect = [&](size_t i, const char* name, SpanKind kind, int32_t parent) {
    const Span& s = recorder.spans[i];
    EXPECT_STREQ(s.name, name);
    EXPECT_EQ(s.kind, kind);
    EXPECT_EQ(s.parent, parent) << name;
    EXPECT_LE(s.begin, s.end);
    if (parent < 0) return;
    EXPECT_LE(recorder.spans[static_cast<size_t>(parent)].begin, s.begin);
    EXPECT_GE(recorder.spans[static_cast<size_t>(parent)].end, s.end);
  };
  expect(0, "outer", SpanKind::phase, -1);
  expect(1, "kernel", SpanKind::kernel, 0);
  expect(2, "second", SpanKind::phase, -1);
  expect(3, "sum", SpanKind::communication, 2);
  expect(4, "last", SpanKind::phase, -1);
  EXPECT_EQ(recorder.spans[3].work.bytes, 64);
  ASSERT_EQ(recorder.posts.size(), 1);
  EXPECT_EQ(recorder.posts[0].sequence, recorder.spans[3].sequence);
}

TEST(Profile, WorkInTheBackgroundBelongsToTheSpanThatBeganIt) {
  Recorder recorder;
  bool working = false;
  int64_t done = 0;
  recorder.start([&] {
    if (std::exchange(working, false)) done = Recorder::now();
  });
  {
    const ProfileSpan span(SpanKind::kernel, "begins work");
    working = true;
  }
  recorder.stop();
  EXPECT_FALSE(working);
  EXPECT_GE(recorder.spans.at(0).end, done);
}

TEST(Profile, OtherThreadsAreNotRecorded) {
  Recorder recorder;
  recorder.start();
  std::thread([] { const ProfileSpan span(SpanKind::phase, "elsewhere"); }).join();
  recorder.stop();
  EXPECT_TRUE(recorder.spans.empty());
}

TEST(Profile, TrafficIsTheBytesOfTensorsThatExist) {
  float data[6];
  const Tensor a(data, DType::f32, {2, 3}), none;
  EXPECT_EQ(traffic({&a, &a, &none}, 5).bytes, 48);
  EXPECT_EQ(traffic({&a}, 5).flops, 5);
}

}  // namespace
}  // namespace llmtrain
