#pragma once
// log.profile: the time of some steps, as a table and as a trace file.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/profile.hpp"
#include "metrics/run_log.hpp"
#include "parallel/job/runtime.hpp"

namespace llmtrain {

/// Speed of this rank while the other ranks of its node run the same benchmark: the reference of the table.
struct MachineLimits {
  double flops = 0;  ///< per second, for a matrix product in the compute dtype
  double bytes = 0;  ///< per second, from and to memory
};
MachineLimits measure_limits(DType compute, int ranks_of_node, Stream& stream);
/// Device memory during the benchmark.
int64_t limits_memory_bytes(DType compute, int64_t ranks_of_node);

/// Spans with equal phase and part, merged, excluding the time of inner spans. The rows add up to the outermost spans.
/// Phases are in the order of their start, parts by descending time.
struct ProfileRow {
  std::string phase;
  std::string part;  ///< a kernel or collective, or "other"
  SpanKind kind = SpanKind::phase;
  int64_t calls = 0;
  int64_t nanoseconds = 0;
  Work work;
};
std::vector<ProfileRow> profile_rows(std::span<const Span> spans);
/// The rows as text, with times and calls per step (of `steps` steps). A kernel's share of its limit is the minimum
/// time for its arithmetic or its bytes divided by its actual time.
std::string profile_table(std::span<const Span> spans, int64_t steps, const MachineLimits& limits);

/// Times of one rank, in nanoseconds.
struct CommunicationTime {
  int64_t exposed = 0;  ///< inside collectives, without other work
  int64_t waiting = 0;  ///< part of it: until the last rank had contributed
};
/// posts: of all ranks, in this rank's clock.
CommunicationTime communication_time(std::span<const Span> spans, std::span<const Post> posts);

/// Chrome's trace events, comma-separated, one per span; times in microseconds after `origin`.
std::string trace_events(std::span<const Span> spans, int rank, int64_t origin);

/// Records `wanted` steps. The first step of a job is skipped if there are others, since it includes the selection of
/// kernels and plans.
class StepProfile {
 public:
  StepProfile(int64_t wanted, int64_t steps_to_come)
      : wanted_(std::min(wanted, steps_to_come)), skip_(steps_to_come > wanted_ ? 1 : 0) {}

  void begin_step(int64_t step, Stream& stream);
  /// No further step is recorded once a rank has as many spans as a trace may show. Collective.
  void end_step(Communicator& communicator);
  /// True if the report is due: all wanted steps are recorded, or as many as there were before `the_end`. The same on
  /// every rank.
  bool due(bool the_end = false) const { return recorded_ > 0 && (the_end || recorded_ == wanted_) && !reported_; }
  /// Collective. Writes the table to the log, and <directory>/trace.json; warns if that cannot be written.
  void report(Runtime& runtime, DType compute, const std::string& directory, RunLog& log);

 private:
  int64_t wanted_;
  int64_t skip_;
  int64_t recorded_ = 0;
  int64_t first_ = 0, last_ = 0;  ///< recorded steps
  bool reported_ = false;
  Recorder recorder_;
};

}  // namespace llmtrain
