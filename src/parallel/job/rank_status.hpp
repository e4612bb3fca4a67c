#pragma once
// Status that one rank publishes to the others in a small file, and its interpretation by an observer.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/activity.hpp"

namespace llmtrain {

/// Identity of a process that others on the same machine can look up.
struct ProcessIdentity {
  std::string host;
  int64_t pid = 0;
  int64_t started = 0;  ///< clock ticks after the boot; distinguishes a later process of the same number
  /// namespace and machine (whose name need not be unique); pids of other namespaces are meaningless here
  std::string pid_namespace;
  bool operator==(const ProcessIdentity&) const = default;
};
ProcessIdentity own_identity();
/// Identity of another process of this machine; its start is 0 when it does not exist.
ProcessIdentity identity_of(int64_t pid);

enum class ProcessState : uint8_t { unknown, running, stopped, gone };
/// State of a process; unknown on other machines.
ProcessState look_up(const ProcessIdentity& process, const ProcessIdentity& observer);

struct RankStatus {
  int64_t job = 0;  ///< id of the job; files of other jobs are ignored
  int64_t rank = 0;
  int64_t beat = 0;     ///< count of statuses that the rank has put
  int64_t written = 0;  ///< time of the last one, in Unix seconds of the rank's clock
  ProcessIdentity process;

  int64_t step = 0;
  std::string section;
  bool waits_for_writer = false;
  bool waits_for_device = false;
  bool in_file_call = false;
  double idle = 0;  ///< seconds without progress, as measured by the rank itself

  std::string collective = "none";
  int64_t sequence = 0;
  int64_t bytes = 0;
  bool in_collective = false;
  double since = 0;  ///< seconds since entry, or exit

  bool writer_active = false;
  double writer_idle = 0;
};

/// Current status of this process, except the fields that only its watchdog knows (job, beat, idle times).
RankStatus status_of(const Activity& activity);

/// Writes one line of JSON, padded with spaces to `status_bytes`, so that one write replaces it in place.
inline constexpr size_t status_bytes = 768;
std::string to_text(const RankStatus& status);
/// Parses a status; nullopt if the text is incomplete.
std::optional<RankStatus> parse_status(const std::string& text);
/// Parses the statuses of a node's file, a line each; omits those that are incomplete.
std::vector<RankStatus> parse_statuses(const std::string& text);

/// "step 118, waits in all-gather #2040 (12.3 MB) for 61 s"
std::string describe(const RankStatus& status);

}  // namespace llmtrain
