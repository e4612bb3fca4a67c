#pragma once
// Loops that the threads of a team share out. Every thread takes a contiguous range of its own first, as parallel_for()
// gives out ranges, so that it finds in its cache what it wrote in the loop before; then what others have left, so that
// the team is as fast as all of its threads together, whatever else the machine does.

#include <atomic>
#include <cstdint>
#include <memory>

namespace llmtrain::host {

class TeamLoops {
 public:
  /// One thread's place in the sequence of loops, which is the same for all threads of a team.
  class Member {
   public:
    Member(TeamLoops& team, int thread) : team_(&team), thread_(thread), loop_(team.loop_) {}
    /// f(i) for i in [0, count), less than 2^24 for each thread, by the whole team. Ends when all are taken; others may
    /// not be done.
    template <class F>
    void share(int64_t count, const F& f) {
      ++loop_;
      for (int i = 0; i < team_->threads_; ++i) {
        const int owner = (thread_ + i) % team_->threads_;
        const int64_t begin = count * owner / team_->threads_, end = count * (owner + 1) / team_->threads_;
        int64_t task = begin;
        while ((task = team_->take(owner, loop_, begin, end)) < end) f(task);
      }
    }

   private:
    friend TeamLoops;
    TeamLoops* team_;
    int thread_;
    uint64_t loop_;
  };

  /// Before the first loop of a team, by one thread.
  void prepare(int threads) {
    if (threads == threads_ && loop_ < max_loops) return;
    counters_ = std::make_unique<Counter[]>(static_cast<size_t>(threads));
    threads_ = threads;
    loop_ = 0;
  }
  /// After the last one, by one thread.
  void done(const Member& any) { loop_ = any.loop_; }

 private:
  /// The number of a loop, and in the lowest bits how many of a thread's range are taken in it. Of an earlier loop:
  /// none of the range is. Of a later one: all are, since a thread goes on when it has seen that.
  struct alignas(128) Counter {
    std::atomic<uint64_t> value{0};
  };

  int64_t take(int owner, uint64_t loop, int64_t begin, int64_t end) {
    std::atomic<uint64_t>& counter = counters_[static_cast<size_t>(owner)].value;
    uint64_t seen = counter.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t counted = seen >> task_bits;
      const int64_t next = begin + (counted < loop ? 0 : static_cast<int64_t>(seen & max_tasks));
      if (counted > loop || next >= end) return end;
      const uint64_t taken = loop << task_bits | static_cast<uint64_t>(next + 1 - begin);
      if (counter.compare_exchange_weak(seen, taken, std::memory_order_relaxed)) return next;
    }
  }

  static constexpr int task_bits = 24;
  static constexpr uint64_t max_tasks = (uint64_t{1} << task_bits) - 1;
  static constexpr uint64_t max_loops = uint64_t{1} << 39;  ///< before a team, whose own then fit in 40 bits

  int threads_ = 0;
  uint64_t loop_ = 0;  ///< the last one
  std::unique_ptr<Counter[]> counters_;
};

}  // namespace llmtrain::host
