#pragma once
// What this process is doing, as others may want to know when it does nothing any more: a record in memory that the
// code marks on its way, cheaply (a few relaxed atomic operations, no lock, no system call but the clock's), and that a
// watching thread reads. State of the process, as its threads are.

#include <array>
#include <atomic>
#include <cstdint>

#include "core/deck/named_enum.hpp"
#include "core/profile.hpp"

namespace llmtrain {

/// Where in the program. Of the training thread and of the thread that writes checkpoints each.
enum class Section : uint8_t { starting, resuming, data, step, evaluation, sampling, saving, exporting, ending };
template <>
inline constexpr auto enum_names<Section> = name_list("starting", "resuming", "reading data", "step", "evaluation",
                                                      "sampling", "saving", "exporting", "ending");

/// Threads whose progress is watched apart. Helpers that a thread starts count as the training thread's.
enum class Lane : uint8_t { main, writer };

struct LaneActivity {
  std::atomic<uint64_t> ticks{0};  ///< grows with every piece of work that is done
  std::atomic<Section> section{Section::starting};
  std::atomic<int> file_calls{0};  ///< inside the file system now
  std::atomic<bool> active{false};
  std::atomic<bool> waits_for_device{false};  ///< for some time already
};

/// The last collective operation that this rank entered.
struct CollectiveActivity {
  std::atomic<const char*> operation{"none"};  ///< a literal
  std::atomic<uint64_t> sequence{0};           ///< its number among all; the same on every rank
  std::atomic<int64_t> bytes{0};
  std::atomic<bool> inside{false};
  std::atomic<int64_t> since{0};  ///< nanoseconds of the steady clock: entered, or left when not inside
};

struct Activity {
  std::array<LaneActivity, 2> lanes;
  CollectiveActivity collective;
  std::atomic<uint64_t> collectives{0};  ///< begun so far
  std::atomic<int64_t> step{0};
  std::atomic<bool> waits_for_writer{false};  ///< the training thread

  LaneActivity& lane(Lane which) { return lanes[static_cast<size_t>(which)]; }
  const LaneActivity& lane(Lane which) const { return lanes[static_cast<size_t>(which)]; }
};

Activity& activity();

/// The calling thread has done a piece of work.
void note_progress();

/// From here to the end of the scope the calling thread is in `section`.
class SectionScope {
 public:
  explicit SectionScope(Section section);
  ~SectionScope();
  SectionScope(const SectionScope&) = delete;
  SectionScope& operator=(const SectionScope&) = delete;

 private:
  Section before_;
};

/// The calling thread writes a checkpoint until the end of the scope.
class WriterScope {
 public:
  WriterScope();
  ~WriterScope();
  WriterScope(const WriterScope&) = delete;
  WriterScope& operator=(const WriterScope&) = delete;

 private:
  Lane before_;
};

/// The training thread waits for the thread that writes checkpoints.
class WriterWait {
 public:
  WriterWait();
  ~WriterWait();
  WriterWait(const WriterWait&) = delete;
  WriterWait& operator=(const WriterWait&) = delete;
};

/// The calling thread waits for the device.
class DeviceWait {
 public:
  DeviceWait();
  ~DeviceWait();
  DeviceWait(const DeviceWait&) = delete;
  DeviceWait& operator=(const DeviceWait&) = delete;

 private:
  LaneActivity& lane_;
};

/// Around a call of the file system that may take long.
class FileCall {
 public:
  FileCall();
  ~FileCall();
  FileCall(const FileCall&) = delete;
  FileCall& operator=(const FileCall&) = delete;

 private:
  LaneActivity& lane_;
};

/// The number of a collective that is begun here and waited for later.
uint64_t begin_collective();

/// Inside a collective operation, where this rank waits for others; as the watchdog sees it.
class CollectiveMark {
 public:
  CollectiveMark(const char* operation, int64_t bytes, uint64_t sequence);
  ~CollectiveMark();
  CollectiveMark(const CollectiveMark&) = delete;
  CollectiveMark& operator=(const CollectiveMark&) = delete;
};

/// The same as a profile sees it, too.
class CollectiveScope {
 public:
  CollectiveScope(const char* operation, int64_t bytes) : CollectiveScope(operation, bytes, begin_collective()) {}
  CollectiveScope(const char* operation, int64_t bytes, uint64_t sequence);

 private:
  ProfileSpan span_;
  CollectiveMark mark_;
};

}  // namespace llmtrain
