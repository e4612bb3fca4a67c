#pragma once
// Profiler: the time of a thread, as nested spans. Code marks spans where they happen; without an observer, a mark is
// one branch. A Recorder observes the spans of its thread, a SpanListener those of all threads.

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

/// Minimum work of a kernel: arithmetic, and bytes between processor and memory.
struct Work {
  double flops = 0;
  double bytes = 0;
};
/// Bytes of tensors that are each read or written once.
Work traffic(std::initializer_list<const Tensor*> tensors, double flops = 0);

struct Span {
  const char* name = "";  ///< string literal
  SpanKind kind = SpanKind::phase;
  int32_t parent = -1;  ///< index of the enclosing span
  int64_t begin = 0;    ///< nanoseconds of the steady clock
  int64_t end = 0;
  Work work;
  uint64_t sequence = 0;  ///< number of a collective, the same on every rank
};

/// Time at which this rank had contributed to a collective.
struct Post {
  uint64_t sequence;
  int64_t time;
};

/// Passes spans to a tool outside of the core, see device/profile_tools.hpp.
struct SpanListener {
  void (*begin)(SpanKind kind, const char* name);
  void (*end)();  ///< ends the innermost span of the calling thread
};
/// `listener` must live as long as the process. An open span ends at the listener at which it began. Null: none.
void set_span_listener(const SpanListener* listener);

/// Number of active recorders and listeners.
inline constinit std::atomic<int> span_observers = 0;

/// Records the spans of the thread that calls start(), until stop().
class Recorder {
 public:
  Recorder() = default;
  ~Recorder() { stop(); }
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// `wait_for_device` is called before each time stamp: it waits for background work of the device, so that every span
  /// ends with its own work.
  void start(std::function<void()> wait_for_device = {});
  void stop();
  /// Recorder of the calling thread, or null.
  static Recorder* current() { return current_; }
  static int64_t now();  ///< nanoseconds of the steady clock

  size_t open(SpanKind kind, const char* name);
  void close(size_t index);
  void post(uint64_t sequence);

  /// Capacity for spans, allocated at the start.
  static constexpr size_t max_spans = size_t{1} << 16;

  std::vector<Span> spans;  ///< in the order of their start
  std::vector<Post> posts;

 private:
  int64_t time_after_device() const;

  static constinit thread_local Recorder* current_;
  std::function<void()> wait_for_device_;
  int32_t innermost_ = -1;
};

/// Opens a span until the end of the scope.
class ProfileSpan {
 public:
  ProfileSpan(SpanKind kind, const char* name) {
    if (span_observers.load(std::memory_order_relaxed) != 0) begin(kind, name);
  }
  /// Span of a kernel; work() is called only while a recorder is active.
  template <class F>
  ProfileSpan(const char* name, const F& work) : ProfileSpan(SpanKind::kernel, name) {
    if (recorder_ != nullptr) recorder_->spans[index_].work = work();
  }
  ~ProfileSpan() {
    if (observed_) end();
  }
  ProfileSpan(const ProfileSpan&) = delete;
  ProfileSpan& operator=(const ProfileSpan&) = delete;

  /// Ends the phase and starts the next one.
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
