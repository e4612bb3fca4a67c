#pragma once
// What one rank tells the others of itself through a small file, and what an observer makes of it.

#include <cstdint>
#include <optional>
#include <string>

#include "core/activity.hpp"

namespace llmtrain {

/// A process that others on the same machine can look up.
struct ProcessIdentity {
  std::string host;
  int64_t pid = 0;
  int64_t started = 0;        ///< clock ticks after the boot: tells a later process of the same number apart
  std::string pid_namespace;  ///< and machine, whose name another may have: pids of others mean nothing here
  bool operator==(const ProcessIdentity&) const = default;
};
ProcessIdentity own_identity();
/// Of another process of this machine; its start is 0 when there is none.
ProcessIdentity identity_of(int64_t pid);

enum class ProcessState : uint8_t { unknown, running, stopped, gone };
/// Unknown for processes of other machines.
ProcessState look_up(const ProcessIdentity& process, const ProcessIdentity& observer);

struct RankStatus {
  int64_t job = 0;  ///< files of another job are not heeded
  int64_t rank = 0;
  int64_t beat = 0;  ///< grows with every writing of the file
  ProcessIdentity process;

  int64_t step = 0;
  std::string section;
  bool waits_for_writer = false;
  bool waits_for_device = false;
  bool in_file_call = false;
  double idle = 0;  ///< seconds without progress, by the rank's own watch

  std::string collective = "none";
  int64_t sequence = 0;
  int64_t bytes = 0;
  bool in_collective = false;
  double since = 0;  ///< seconds since it was entered, or left

  bool writer_active = false;
  double writer_idle = 0;
};

/// Of this process now, but for what only its watch knows (job, beat, idle times).
RankStatus status_of(const Activity& activity);

/// One line of JSON, filled up with spaces to `status_bytes`, so that it is replaced in place by one write.
inline constexpr size_t status_bytes = 768;
std::string to_text(const RankStatus& status);
/// None when the text is no whole status.
std::optional<RankStatus> parse_status(const std::string& text);

/// "step 118, waits in all-gather #2040 (12.3 MB) for 61 s"
std::string describe(const RankStatus& status);

}  // namespace llmtrain
