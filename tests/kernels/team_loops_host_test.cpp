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

/// Number of times that each index of each loop was taken, and by which thread, in a team of `threads`.
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
  team.reserve(static_cast<size_t>(threads));
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
  TeamLoops loops;
  for (const int threads : {1, 2, 3, 8, 2}) {
    for (int round = 0; round < 50; ++round) {
      const Taken taken = take_all(loops, threads, counts, [](int) {});
      for (const auto& times : taken.times) {
        for (const int t : times) ASSERT_EQ(t, 1) << threads << " threads, round " << round;
      }
    }
  }
}

/// Waits until f(), or for 20 s.
template <class F>
void wait_for(const F& f) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!f() && std::chrono::steady_clock::now() < until) std::this_thread::yield();
}

TEST(TeamLoops, AThreadTakesItsOwnRangeAndWhatASlowOneLeaves) {
  TeamLoops loops;
  std::atomic<int> begun{0};
  std::atomic<bool> slow_began{false};
  const Taken taken = take_all(loops, 2, {40}, [&](int thread) {
    ++begun;
    if (thread == 1) {
      slow_began = true;
      wait_for([&] { return begun == 40; });
    } else {
      wait_for([&] { return slow_began.load(); });
    }
  });
  std::vector<int> expected(40, 0);
  expected[20] = 1;  // the first of the second range
  EXPECT_EQ(taken.by[0], expected);
}

}  // namespace
}  // namespace llmtrain::host
