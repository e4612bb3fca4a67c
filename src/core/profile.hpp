#pragma once
// What a thread spends its time on, as nested spans. Code marks spans where they happen; while nobody observes them, a
// mark is one branch. A Recorder observes the spans of its thread, a SpanListener those of all threads.

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <utility>
#include <vector>

#include "core/deck/named_enum.hpp"
#include "core/tensor.hpp"

namespace llmtrain {

enum class SpanKind : uint8_t { phase, kernel, communication };
template <>
inline constexpr auto enum_names<SpanKind> = name_list("phase", "kernel", "communication");

/// What a kernel has to do at least: arithmetic, and bytes between processor and memory.
struct Work {
  double flops = 0;
  double bytes = 0;
};
/// Of tensors that are each read or written once.
Work traffic(std::initializer_list<const Tensor*> tensors, double flops = 0);

struct Span {
  const char* name = "";  ///< a literal
  SpanKind kind = SpanKind::phase;
  int32_t parent = -1;  ///< index of the span around it
  int64_t begin = 0;    ///< nanoseconds of the steady clock
  int64_t end = 0;
  Work work;
  uint64_t sequence = 0;  ///< of a collective: its number, the same on every rank
};

/// When this rank had given its part of a collective.
struct Post {
  uint64_t sequence;
  int64_t time;
};

/// Passes spans on to a tool that the core does not know: see device/profile_tools.hpp.
struct SpanListener {
  void (*begin)(SpanKind kind, const char* name);
  void (*end)();  ///< the innermost span of the calling thread ends
};
/// `listener` lasts as long as the process. A span that is open meanwhile ends at the listener at which it began.
/// Null: none.
void set_span_listener(const SpanListener* listener);

/// Counts recorders at work and the listener.
inline constinit std::atomic<int> span_observers = 0;

/// Records the spans of the thread that calls start(), until stop().
class Recorder {
 public:
  Recorder() = default;
  ~Recorder() { stop(); }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// settle is called before a time is taken: it waits for the work that a device does in the background, so that every
  /// span ends with its own.
  void start(std::function<void()> settle = {});
  void stop();
  /// Of the calling thread, or null.
  static Recorder* current() { return current_; }
  static int64_t now();  ///< nanoseconds of the steady clock

  size_t open(SpanKind kind, const char* name);
  void close(size_t index);
  void post(uint64_t sequence);

  /// What a profile of some steps has; room for as many is made at the start.
  static constexpr size_t max_spans = size_t{1} << 16;

  std::vector<Span> spans;  ///< in the order of their beginnings
  std::vector<Post> posts;

 private:
  int64_t settled_now() const;

  static constinit thread_local Recorder* current_;
  std::function<void()> settle_;
  int32_t innermost_ = -1;
};

/// A span from here to the end of the scope.
class ProfileSpan {
 public:
  ProfileSpan(SpanKind kind, const char* name) {
    if (span_observers.load(std::memory_order_relaxed) != 0) begin(kind, name);
  }
  /// A kernel; work() is asked only while somebody records.
  template <class F>
  ProfileSpan(const char* name, const F& work) : ProfileSpan(SpanKind::kernel, name) {
    if (recorder_ != nullptr) recorder_->spans[index_].work = work();
  }
  ~ProfileSpan() {
    if (observed_) end();
  }
  ProfileSpan(const ProfileSpan&) = delete;
  ProfileSpan& operator=(const ProfileSpan&) = delete;

  /// Ends here, and a phase begins.
  void next(const char* phase) {
    if (!observed_) return;
    end();
    begin_at_observers(SpanKind::phase, phase);
  }
  void set_collective(uint64_t sequence, int64_t bytes) {
    if (recorder_ == nullptr) return;
    recorder_->spans[index_].sequence = sequence;
    recorder_->spans[index_].work.bytes = static_cast<double>(bytes);
  }

 private:
  void begin(SpanKind kind, const char* name);
  void begin_at_observers(SpanKind kind, const char* name);
  void end();

  Recorder* recorder_ = nullptr;
  const SpanListener* listener_ = nullptr;
  size_t index_ = 0;
  bool observed_ = false;
};

}  // namespace llmtrain
