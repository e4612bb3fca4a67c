#include "core/profile.hpp"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/activity.hpp"
#include "core/error.hpp"

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

/// What a listener heard: "(name" and ")".
std::vector<std::string> heard;
constexpr SpanListener listener = {
    [](SpanKind /*kind*/, const char* name) { heard.push_back(std::string("(") + name); },
    [] { heard.emplace_back(")"); }};

TEST(Profile, AListenerHearsEverySpanToItsEnd) {
  heard.clear();
  { const ProfileSpan before(SpanKind::phase, "before"); }
  {
    const ProfileSpan open(SpanKind::phase, "open when it comes");
    set_span_listener(&listener);
  }
  EXPECT_TRUE(heard.empty());
  bool asked = false;
  try {
    const ProfileSpan outer(SpanKind::phase, "outer");
    ProfileSpan phase(SpanKind::phase, "first");
    phase.next("second");
    const ProfileSpan kernel("kernel", [&] {
      asked = true;
      return Work{};
    });
    throw Error("leaves all of them");
  } catch (const Error&) {
  }
  EXPECT_EQ(heard, (std::vector<std::string>{"(outer", "(first", ")", "(second", "(kernel", ")", ")", ")"}));
  EXPECT_FALSE(asked) << "for work, though nobody records";

  heard.clear();
  {
    const ProfileSpan open(SpanKind::phase, "open when it goes");
    set_span_listener(nullptr);
    const ProfileSpan after(SpanKind::phase, "after");
  }
  EXPECT_EQ(heard, (std::vector<std::string>{"(open when it goes", ")"}));
  EXPECT_EQ(span_observers, 0);
}

TEST(Profile, AListenerAndARecorderDoNotDisturbEachOther) {
  heard.clear();
  set_span_listener(&listener);
  Recorder recorder;
  {
    ProfileSpan outer(SpanKind::phase, "outer");
    recorder.start();
    { const ProfileSpan inner(SpanKind::phase, "inner"); }
    std::thread([] { const ProfileSpan other(SpanKind::phase, "of another thread"); }).join();
    recorder.start();  // again, as for every step of a profile
    recorder.stop();
    recorder.stop();
    outer.next("not recorded, as it began before");
  }
  set_span_listener(nullptr);
  EXPECT_EQ(heard, (std::vector<std::string>{"(outer", "(inner", ")", "(of another thread", ")", ")",
                                             "(not recorded, as it began before", ")"}));
  ASSERT_EQ(recorder.spans.size(), 1);
  EXPECT_STREQ(recorder.spans[0].name, "inner");
  EXPECT_EQ(span_observers, 0) << "a mark is one branch again";
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
