#pragma once
// log.profile: where the time of some steps goes, as a table and as a trace file.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/profile.hpp"
#include "metrics/run_log.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {

/// What this rank reaches while the others of its node do the same: the yardstick of the table.
struct MachineLimits {
  double flops = 0;  ///< a second, of a matrix product in the compute dtype
  double bytes = 0;  ///< a second, from and to memory
};
MachineLimits measure_limits(DType compute, int ranks_of_node, Stream& stream);
/// Of the device, while it measures.
int64_t limits_memory_bytes(DType compute, int64_t ranks_of_node);

/// Equal parts of equal phases together, without the time of the spans inside them. The rows add up to the outermost
/// spans. Phases in the order of their beginnings, the longest part first.
struct ProfileRow {
  std::string phase;
  std::string part;  ///< a kernel or collective, or "other"
  SpanKind kind = SpanKind::phase;
  int64_t calls = 0;
  int64_t nanoseconds = 0;
  Work work;
};
std::vector<ProfileRow> profile_rows(std::span<const Span> spans);
/// These rows as text, times and calls of one of `steps` steps. A kernel's share of its limit: the least time that its
/// arithmetic or its bytes would take, of the time that it took.
std::string profile_table(std::span<const Span> spans, int64_t steps, const MachineLimits& limits);

/// Of one rank, in nanoseconds.
struct CommunicationTime {
  int64_t exposed = 0;  ///< inside collectives, when nothing else was done
  int64_t waiting = 0;  ///< of that: until the last rank had given its part
};
/// posts: of all ranks on this rank's clock.
CommunicationTime communication_time(std::span<const Span> spans, std::span<const Post> posts);

/// Chrome's trace events, comma-separated, one a span; times in microseconds after `origin`.
std::string trace_events(std::span<const Span> spans, int rank, int64_t origin);

/// Records `wanted` steps: the first of a job is left out where there are others, since it makes kernels and plans.
class StepProfile {
 public:
  StepProfile(int64_t wanted, int64_t steps_to_come)
      : wanted_(std::min(wanted, steps_to_come)), skip_(steps_to_come > wanted_ ? 1 : 0) {}

  void begin_step(int64_t step, Stream& stream);
  void end_step();
  /// No further step is recorded once a rank has as many spans as a trace may show: every rank is told so.
  bool recording() const { return recorded_ > 0 && recorded_ < wanted_; }
  bool crowded() const { return recorder_.spans.size() >= Recorder::max_spans; }
  void end_here() { wanted_ = recorded_; }
  /// All wanted steps are recorded, or as many as there were before `the_end`, and the report is due. The same on every
  /// rank.
  bool due(bool the_end = false) const { return recorded_ > 0 && (the_end || recorded_ == wanted_) && !reported_; }
  /// Collective. The table in the log, and <directory>/trace.json; a warning where that cannot be written.
  void report(Runtime& runtime, DType compute, const std::string& directory, RunLog& log);

 private:
  int64_t wanted_;
  int64_t skip_;
  int64_t recorded_ = 0;
  int64_t first_ = 0, last_ = 0;  ///< steps recorded
  bool reported_ = false;
  Recorder recorder_;
};

}  // namespace llmtrain
