#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "kernels/host/team_loops.hpp"

namespace llmtrain::host {
namespace {

/// How often every index of every loop was taken, by which thread, in a team of `threads`.
struct Taken {
  std::vector<std::vector<int>> times, by;
};

template <class F>
Taken take_all(TeamLoops& loops, int threads, const std::vector<int64_t>& counts, const F& work) {
  Taken taken;
  for (const int64_t count : counts) {
    taken.times.emplace_back(static_cast<size_t>(count), 0);
    taken.by.emplace_back(static_cast<size_t>(count), -1);
  }
  loops.prepare(threads);
  std::barrier started(threads);
  std::vector<std::jthread> team;
  for (int thread = 0; thread < threads; ++thread) {
    team.emplace_back([&, thread] {
      TeamLoops::Member member(loops, thread);
      started.arrive_and_wait();
      for (size_t loop = 0; loop < counts.size(); ++loop) {
        member.share(counts[loop], [&](int64_t i) {
          std::atomic_ref(taken.times[loop][static_cast<size_t>(i)])++;
          std::atomic_ref(taken.by[loop][static_cast<size_t>(i)]) = thread;
          work(thread);
        });
      }
      if (thread == 0) loops.done(member);
    });
  }
  team.clear();
  return taken;
}

TEST(TeamLoops, EveryTaskIsTakenOnce) {
  const std::vector<int64_t> counts{1, 0, 7, 3, 64, 2, 0, 0, 1000, 5};
  for (const uint32_t before : {0u, 0xFFFFFFF0u}) {  // the number of the loop goes round
    TeamLoops loops(before);
    for (const int threads : {1, 2, 3, 8, 2}) {
      for (int round = 0; round < 50; ++round) {
        const Taken taken = take_all(loops, threads, counts, [](int) {});
        for (const auto& times : taken.times) {
          for (const int t : times) ASSERT_EQ(t, 1) << threads << " threads, round " << round;
        }
      }
    }
  }
}

TEST(TeamLoops, AThreadTakesItsOwnRangeAndWhatASlowOneLeaves) {
  TeamLoops loops;
  const Taken taken = take_all(
      loops, 2, {40}, [](int thread) { std::this_thread::sleep_for(std::chrono::milliseconds(thread == 0 ? 1 : 20)); });
  const std::vector<int>& by = taken.by[0];
  EXPECT_EQ(by[0], 0);
  EXPECT_EQ(by[20], 1);  // the first of the second range
  EXPECT_EQ(by[39], 0) << "the slow thread was left alone with its range";
}

}  // namespace
}  // namespace llmtrain::host
