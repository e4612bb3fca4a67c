// The report of a run, report/report.html, written anew while the run lasts.

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "metrics/sink.hpp"
#include "report/report.hpp"

namespace llmtrain {

namespace {

class HtmlSink : public Sink {
 public:
  explicit HtmlSink(const SinkOptions& options) : folder_(options.directory) {}

  void interval(const IntervalRecord& /*record*/) override { write_sometimes(); }
  void evaluation(const EvaluationRecord& /*record*/, double /*wall_time*/) override { write_sometimes(); }
  std::string resume(int64_t /*step*/, PendingWork /*pending*/, double /*wall_time*/) override { return {}; }
  void roll_back(const RollbackRecord& /*record*/, PendingWork /*pending*/, double /*wall_time*/) override {}
  void end(bool /*finished*/) override { write(); }
  void sync() override {}

 private:
  using Clock = std::chrono::steady_clock;

  /// At most every minute, and in at most 0.5 % of the run's time.
  void write_sometimes() {
    if (Clock::now() >= next_) write();
  }
  void write() {
    const Clock::time_point begin = Clock::now();
    write_report({folder_}, folder_ / "report" / "report.html");
    const Clock::time_point end = Clock::now();
    next_ = end + std::max<Clock::duration>(std::chrono::minutes(1), 200 * (end - begin));
  }

  std::filesystem::path folder_;
  Clock::time_point next_;
};

}  // namespace

std::unique_ptr<Sink> make_html_sink(const SinkOptions& options) { return std::make_unique<HtmlSink>(options); }

}  // namespace llmtrain
