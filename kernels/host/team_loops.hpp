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
    /// f(i) for i in [0, count), by the whole team. Ends when all are taken; others may not be done.
    template <class F>
    void share(int64_t count, const F& f) {
      ++loop_;
      for (int i = 0; i < team_->threads_; ++i) {
        const int owner = (thread_ + i) % team_->threads_;
        const int64_t end = count * (owner + 1) / team_->threads_;
        for (int64_t task; (task = team_->take(owner, loop_, count * owner / team_->threads_, end)) < end;) f(task);
      }
    }

   private:
    friend TeamLoops;
    TeamLoops* team_;
    int thread_;
    uint32_t loop_;
  };

  explicit TeamLoops(uint32_t done = 0) : loop_(done) {}

  /// Before the first loop of a team, by one thread.
  void prepare(int threads) {
    if (threads == threads_) return;
    counters_ = std::make_unique<Counter[]>(static_cast<size_t>(threads));
    threads_ = threads;
    for (int i = 0; i < threads; ++i) counters_[static_cast<size_t>(i)].value = uint64_t{loop_} << 32;
  }
  /// After the last one, by one thread.
  void done(const Member& any) { loop_ = any.loop_; }

 private:
  /// The loop in the upper half, and in the lower what is taken next of a thread's range. Of an earlier loop: nothing
  /// of the range is taken yet. Of a later one: all of it is, since a thread goes on when it has seen that.
  struct alignas(128) Counter {
    std::atomic<uint64_t> value{0};
  };

  int64_t take(int owner, uint32_t loop, int64_t begin, int64_t end) {
    std::atomic<uint64_t>& counter = counters_[static_cast<size_t>(owner)].value;
    uint64_t seen = counter.load(std::memory_order_relaxed);
    for (;;) {
      const auto later = static_cast<int32_t>(static_cast<uint32_t>(seen >> 32) - loop);  // numbers go round
      const int64_t next = later < 0 ? begin : static_cast<int64_t>(static_cast<uint32_t>(seen));
      if (later > 0 || next >= end) return end;
      const uint64_t taken = uint64_t{loop} << 32 | static_cast<uint32_t>(next + 1);
      if (counter.compare_exchange_weak(seen, taken, std::memory_order_relaxed)) return next;
    }
  }

  int threads_ = 0;
  uint32_t loop_;  ///< the last one
  std::unique_ptr<Counter[]> counters_;
};

}  // namespace llmtrain::host
