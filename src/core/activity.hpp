#pragma once
// The current activity of this process, for the watchdog: a record in memory that the code updates as it goes, cheaply
// (a few relaxed atomic operations, no lock, no system call but the clock's), and that a watching thread reads. The
// record is process-wide.

#include <array>
#include <atomic>
#include <cstdint>

#include "core/deck/named_enum.hpp"
#include "core/profile.hpp"

namespace llmtrain {

/// Section of the program. The training thread and the thread that writes checkpoints have one each.
enum class Section : uint8_t { starting, resuming, data, step, evaluation, sampling, saving, exporting, ending };
template <>
inline constexpr auto enum_names<Section> = name_list("starting", "resuming", "reading data", "step", "evaluation",
                                                      "sampling", "saving", "exporting", "ending");

/// Threads whose progress is watched separately. Helper threads count as the training thread.
enum class Lane : uint8_t { main, writer };

struct LaneActivity {
  std::atomic<uint64_t> ticks{0};  ///< count of completed work items
  std::atomic<Section> section{Section::starting};
  std::atomic<int> file_calls{0};  ///< calls of the file system in progress
  std::atomic<bool> active{false};
  std::atomic<bool> waits_for_device{false};  ///< true once the wait has lasted some time
};

/// The last collective operation that this rank entered.
struct CollectiveActivity {
  std::atomic<const char*> operation{"none"};  ///< string literal
  std::atomic<uint64_t> sequence{0};           ///< number of the operation, the same on every rank
  std::atomic<int64_t> bytes{0};
  std::atomic<bool> inside{false};
  std::atomic<int64_t> since{0};   ///< time of entry, or of exit when not inside; nanoseconds of the steady clock
  std::atomic<int64_t> waited{0};  ///< nanoseconds inside of collectives so far
};

struct Activity {
  std::array<LaneActivity, 2> lanes;
  CollectiveActivity collective;
  std::atomic<uint64_t> collectives{0};  ///< number of collectives started
  std::atomic<int64_t> step{0};
  std::atomic<bool> waits_for_writer{false};  ///< true while the training thread waits

  LaneActivity& lane(Lane which) { return lanes[static_cast<size_t>(which)]; }
  const LaneActivity& lane(Lane which) const { return lanes[static_cast<size_t>(which)]; }
};

Activity& activity();

/// Reports to the watchdog that the calling thread progresses.
void report_progress();

/// Assigns the calling thread to `section` until the end of the scope.
class SectionScope {
 public:
  explicit SectionScope(Section section);
  ~SectionScope();
  SectionScope(const SectionScope&) = delete;
  SectionScope& operator=(const SectionScope&) = delete;

 private:
  Section before_;
};

/// Marks the calling thread as the writer of a checkpoint until the end of the scope.
class WriterScope {
 public:
  WriterScope();
  ~WriterScope();
  WriterScope(const WriterScope&) = delete;
  WriterScope& operator=(const WriterScope&) = delete;

 private:
  Lane before_;
};

/// Marks the training thread as waiting for the thread that writes checkpoints.
class WriterWait {
 public:
  WriterWait();
  ~WriterWait();
  WriterWait(const WriterWait&) = delete;
  WriterWait& operator=(const WriterWait&) = delete;
};

/// Marks the calling thread as waiting for the device.
class DeviceWait {
 public:
  DeviceWait();
  ~DeviceWait();
  DeviceWait(const DeviceWait&) = delete;
  DeviceWait& operator=(const DeviceWait&) = delete;

 private:
  LaneActivity& lane_;
};

/// Marks a call of the file system that may take long.
class FileCall {
 public:
  FileCall();
  ~FileCall();
  FileCall(const FileCall&) = delete;
  FileCall& operator=(const FileCall&) = delete;

 private:
  LaneActivity& lane_;
};

/// Returns the number of a collective that starts here and is waited for later.
uint64_t begin_collective();

/// Marks a collective operation, in which this rank waits for others, for the watchdog.
class CollectiveMark {
 public:
  CollectiveMark(const char* operation, int64_t bytes, uint64_t sequence);
  ~CollectiveMark();
  CollectiveMark(const CollectiveMark&) = delete;
  CollectiveMark& operator=(const CollectiveMark&) = delete;
};

/// Marks the same for the profiler too.
class CollectiveScope {
 public:
  CollectiveScope(const char* operation, int64_t bytes) : CollectiveScope(operation, bytes, begin_collective()) {}
  CollectiveScope(const char* operation, int64_t bytes, uint64_t sequence);

 private:
  ProfileSpan span_;
  CollectiveMark mark_;
};

}  // namespace llmtrain
