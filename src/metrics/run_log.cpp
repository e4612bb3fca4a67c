#include "metrics/run_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <set>
#include <utility>

#include "core/number_text.hpp"
#include "core/terminal.hpp"
#include "metrics/append_file.hpp"
#include "metrics/console.hpp"
#include "metrics/ledger.hpp"
#include "metrics/run_statistics.hpp"
#include "metrics/scalars.hpp"

namespace llmtrain {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double seconds_between_live = 0.1;

/// Resident memory in bytes, read by `now` at most as often as the cost allows. The kernel walks all pages for this
/// value, a second and more for 100 GiB: it may take at most 1 % of the time.
class MemoryGauge {
 public:
  explicit MemoryGauge(std::function<int64_t()> now) : now_(std::move(now)) {}
  int64_t bytes() {
    const Clock::time_point begin = Clock::now();
    if (now_ && begin >= next_) {
      bytes_ = now_();
      const Clock::time_point end = Clock::now();
      next_ = end + 100 * (end - begin);
    }
    return bytes_;
  }

 private:
  std::function<int64_t()> now_;
  int64_t bytes_ = 0;
  Clock::time_point next_;  ///< earliest time of the next call
};

}  // namespace

struct RunLog::State {
  explicit State(const RunLogOptions& o)
      : options(o), console(o.run.directory.empty() ? "" : o.run.directory + "/log.txt", o.active) {
    if (!o.active || o.run.directory.empty()) return;
    ledger = std::make_unique<AppendFile>(o.run.directory + "/ledger.jsonl");
    for (const std::string& line : o.earlier) console.log_only(line);
    make_sinks();
    if (o.resumed || !o.run.restart.empty()) resume();
    each_sink([](Sink& sink) { sink.sync(); });
    run.interval.grad_norms.reserve(std::clamp<size_t>(static_cast<size_t>(o.every_steps), 1, max_grad_norms));
  }

  void make_sinks();
  /// Calls work(sink) for every sink. One that fails ends with a warning; the run continues.
  template <class Work>
  void each_sink(const Work& work) {
    std::erase_if(sinks, [&](NamedSink& sink) {
      try {
        work(*sink.sink);
        return false;
      } catch (const std::exception& error) {
        warn_of_end(sink.name, error.what());
      }
      return true;
    });
  }
  void warn_of_end(LogConfig::Sink name, const char* why) {
    console.warn(fmt::format("log.sinks: the run continues without {}: {}", name_of(name), why));
  }
  void resume();
  void write_interval(const StepRecord& r, const SystemRecord& system = {});
  void tell(const NodeNotice& notice);
  void print_training();
  std::string progress(const StepRecord& r) const;
  std::string live_text(const StepRecord& r) const;
  void show_live(const StepRecord& r);
  double seconds_left(int64_t step) const;
  IntervalRecord interval_record(const StepRecord& r);

  RunLogOptions options;
  /// Memory before the planned allocation is touched.
  int64_t libraries = options.memory_now ? options.memory_now() : 0;
  MemoryGauge memory{options.memory_now};
  Console console;
  std::unique_ptr<AppendFile> ledger;
  struct NamedSink {
    LogConfig::Sink name;
    std::unique_ptr<Sink> sink;
  };
  std::vector<NamedSink> sinks;
  std::string ledger_text;                        ///< current line
  Sparkline losses;                               ///< on a terminal
  double unshown_seconds = seconds_between_live;  ///< of the steps since the live line was replaced
  RunStatistics run;
};

RunLog::RunLog(const RunLogOptions& options) : state_(std::make_unique<State>(options)) {}
RunLog::~RunLog() = default;

void RunLog::print(const std::string& text) { state_->console.print(text); }
void RunLog::warn(const std::string& text) { state_->console.warn(text); }

double RunLog::State::seconds_left(int64_t step) const {
  const int64_t evaluations = options.evaluations_left != nullptr ? options.evaluations_left(step) : 0;
  return run.seconds_left(options.total_steps - step, evaluations, options.evaluation_steps);
}

std::string RunLog::State::progress(const StepRecord& r) const {
  const int64_t total = std::max<int64_t>(options.total_steps, 1);
  const int width = static_cast<int>(fmt::formatted_size("{}", total));
  const double loss = run.interval.mean_loss();  // nan: none of these steps was good and had targets
  const char* without_loss = run.interval.tokens == 0 ? "no targets" : "skipped";
  std::string line = fmt::format("step {:>{}}/{} {:>3}%  loss {}", r.step, width, total, r.step * 100 / total,
                                 std::isnan(loss) ? without_loss : number_text(loss, 4));
  for (const NamedValue& metric : r.metrics) {
    if (metric.label.empty()) continue;
    const bool without = metric.label == "reward" && std::isnan(metric.value);  // no completion has one
    line += without ? "  no reward" : fmt::format("  {} {}", metric.label, number_text(metric.value, 3));
  }
  line += run.fresh ? fmt::format("  val {:.4f}", run.fresh->loss) : std::string();
  line += fmt::format("  lr {:.2e}  norm {:>6}  {:>12}  {:>12}", r.learning_rate, number_text(r.grad_norm, 3),
                      with_unit(run.interval.rate(), "tok/s"),
                      with_unit(run.interval.rate() * options.flops_per_token, "FLOP/s"));
  if (r.scaling) line += fmt::format("  scale {:g}", r.scaling->loss_scale);
  return line + (r.step < total ? "  left " + duration(seconds_left(r.step)) : std::string());
}

/// Line between those of progress(): first what is wanted of a line that moves, then as much as there is room for.
std::string RunLog::State::live_text(const StepRecord& r) const {
  const int64_t total = std::max<int64_t>(options.total_steps, 1);
  const double done = static_cast<double>(r.step) / static_cast<double>(total), loss = run.interval.mean_loss();
  std::string line = fmt::format("step {}/{}", r.step, options.total_steps);
  if (console.width() >= 60) line += "  " + bar_text(done, console.width() >= 100 ? 32 : 18);
  line += fmt::format("  {}%", r.step * 100 / total);
  if (!std::isnan(loss)) line += "  loss " + number_text(loss, 4);
  if (const std::string curve = losses.text(); locale_is_utf8() && !curve.empty()) line += " " + curve;
  if (r.step < total) line += "  left " + duration(seconds_left(r.step));
  return line + fmt::format("  {}  norm {}  lr {:.2e}", with_unit(run.interval.rate(), "tok/s"),
                            number_text(r.grad_norm, 3), r.learning_rate);
}

/// A terminal may take long for a line, longer than a short step.
void RunLog::State::show_live(const StepRecord& r) {
  if (!console.has_live()) return;
  unshown_seconds += r.seconds;
  if (unshown_seconds < seconds_between_live) return;
  console.live(live_text(r));
  unshown_seconds = 0;
}

IntervalRecord RunLog::State::interval_record(const StepRecord& r) {
  const auto mean = [steps = static_cast<double>(run.interval.steps)](double sum) { return sum / steps; };
  IntervalRecord record;
  record.last = r;
  record.wall_time = run.wall_time();
  record.loss_mean = run.interval.mean_loss();
  record.tokens_per_second = run.interval.rate();
  record.flops_per_second = run.interval.rate() * options.flops_per_token;
  record.memory = memory.bytes();
  record.memory_libraries = libraries;
  record.memory_planned = options.memory_bytes;
  record.seconds = mean(run.interval.seconds);
  const StepRecord::Phases& p = run.interval.phases;
  record.grad_norms = run.interval.grad_norms;
  record.phases = {mean(p.data), mean(p.forward_backward), mean(p.reduction), mean(p.optimizer)};
  const double seconds = std::max(run.interval.seconds, 1e-9);
  record.system.push_back({"samples_per_second", {}, static_cast<double>(run.interval.sequences) / seconds});
  if (run.joules > 0) {
    record.system.push_back({"energy/joules", {}, run.joules});
    record.system.push_back({"energy/joules_per_token", {}, run.joules_per_token()});
  }
  if (options.peak_flops > 0) record.system.push_back({"mfu", {}, record.flops_per_second / options.peak_flops});
  return record;
}

bool RunLog::ends_interval(int64_t step) const {
  const RunLogOptions& o = state_->options;
  const bool due = o.every_steps > 0 && (step % o.every_steps == 0 || (step == 1 && o.every_first));
  return due || step == o.total_steps;
}

void RunLog::step(const StepRecord& r, const SystemRecord& system) {
  State& s = *state_;
  if (!s.options.active) return;
  if (s.ledger) {
    ledger_line(r, s.ledger_text);
    s.ledger->append(s.ledger_text);
  }
  if (r.bad_steps > 0) s.console.warn(problem_text(r));
  if (r.scaling && r.scaling->skipped) s.console.print(skip_text(r));
  s.run.add(r);
  if (s.console.has_live() && r.bad_steps == 0 && r.tokens > 0) s.losses.add(r.loss);
  if (!ends_interval(r.step)) {
    s.show_live(r);
    return;
  }
  if (system.joules) s.run.add_energy(*system.joules);
  s.write_interval(r, system);
}

void RunLog::State::write_interval(const StepRecord& r, const SystemRecord& system) {
  console.print(progress(r));
  run.fresh.reset();
  IntervalRecord record = interval_record(r);
  record.system.insert(record.system.end(), system.values.begin(), system.values.end());
  record.system.insert(record.system.end(), r.details.begin(), r.details.end());
  each_sink([&](Sink& sink) { sink.interval(record); });
  for (const NodeNotice& notice : system.notices) tell(notice);
  run.interval.clear();
}

void RunLog::State::tell(const NodeNotice& notice) {
  if (notice.slow || notice.replay != NodeNotice::Replay::none) {
    console.warn(notice_text(notice));
  } else {
    console.print(notice_text(notice));
  }
  each_sink([&](Sink& sink) { sink.notice(notice, run.wall_time()); });
}

void RunLog::notice(const NodeNotice& notice) {
  if (state_->options.active) state_->tell(notice);
}

void RunLog::evaluation(const EvaluationRecord& r) {
  State& s = *state_;
  if (!s.options.active) return;
  s.run.add(r);
  if (s.ledger) s.ledger->append(ledger_line(r));
  const double wall = s.run.wall_time();
  s.each_sink([&](Sink& sink) { sink.evaluation(r, wall); });
  std::string text = fmt::format("step {}", r.step);
  if (r.tokens > 0) text += fmt::format("  validation loss {:.4f}", r.loss);
  if (r.tokens > 0 && r.metrics.empty()) text += fmt::format("  perplexity {:.3f}", std::exp(r.loss));
  for (const auto* values : {&r.metrics, &r.scores}) {
    for (const NamedValue& value : *values) {
      if (!value.label.empty()) text += fmt::format("  {} {}", value.label, number_text(value.value, 3));
    }
  }
  if (r.token_accuracy) text += fmt::format("  accuracy {:.2f} %", 100 * *r.token_accuracy);
  if (r.best) text += "  best";
  const std::string count =
      r.tokens > 0 ? fmt::format("{} {} in ", r.tokens, r.metrics.empty() ? "tokens" : "samples") : "";
  s.console.print(fmt::format("{}  ({}{})", text, count, duration(r.seconds)));
}

void RunLog::State::make_sinks() {
  SinkOptions sink = options.run;
  for (DeckSetting& setting : sink.settings) setting.value = with_valid_utf8(setting.value);
  const std::set<LogConfig::Sink> names(options.sinks.begin(), options.sinks.end());
  for (const LogConfig::Sink name : names) {
    try {
      sinks.push_back({name, make_sink(name, sink)});
    } catch (const std::exception& error) {
      warn_of_end(name, error.what());
    }
  }
}

void RunLog::State::resume() {
  if (options.resumed) run.restore(*options.resumed);
  const PendingWork pending = options.resumed ? options.resumed->pending : PendingWork{};
  each_sink([&](Sink& sink) {
    const std::string warning = sink.resume(options.resumed_step, pending, run.earlier_seconds());
    if (!warning.empty()) console.warn(warning);
  });
}

void RunLog::roll_back(const RollbackRecord& r, const LogState& from) {
  State& s = *state_;
  if (!s.options.active) return;
  const double wall = s.run.wall_time();
  s.console.warn(problem_text(r));
  if (s.ledger) s.ledger->append(ledger_line(r));
  s.run.roll_back(from);
  s.each_sink([&](Sink& sink) { sink.roll_back(r, from.pending, wall); });
}

LogState RunLog::save() {
  State& s = *state_;
  if (!s.options.active) return {};
  if (s.ledger) s.ledger->sync();
  s.each_sink([](Sink& sink) { sink.sync(); });
  return s.run.save();
}

void RunLog::samples(const SampleRecord& r) {
  State& s = *state_;
  s.run.sample_seconds += r.seconds;
  SampleRecord valid{r.step, {}, r.seconds};
  for (const SampleRecord::Sample& sample : r.samples) {
    valid.samples.push_back({with_valid_utf8(sample.prompt), with_valid_utf8(sample.text)});
    std::string text;
    for (char c : sample.prompt + sample.text) text += c == '\n' ? "\n  | " : std::string(1, c);
    s.console.print(fmt::format("step {}  sample\n  | {}", r.step, text));
  }
  const double wall = s.run.wall_time();
  s.each_sink([&](Sink& sink) { sink.samples(valid, wall); });
}

void RunLog::stop(const std::string& reason) {
  State& s = *state_;
  if (!s.options.active) return;
  s.console.print("");
  s.console.print(reason);
  s.console.print(fmt::format("  results             {}", s.options.run.directory));
  s.each_sink([](Sink& sink) { sink.end(false); });
}

void RunLog::fail(const std::string& error) {
  State& s = *state_;
  if (!s.options.active) return;
  s.console.log_only(error);
  s.each_sink([](Sink& sink) {
    sink.end(false);
    sink.sync();
  });
}

void RunLog::finish(const std::string& reason) {
  State& s = *state_;
  if (!s.options.active) return;
  if (s.run.interval.steps > 0) s.write_interval(s.run.last_step);
  s.console.print("");
  s.console.print(reason);
  if (s.options.total_steps > 0) s.print_training();
  if (!s.options.run.directory.empty())
    s.console.print(fmt::format("  results             {}", s.options.run.directory));
  if (s.ledger) s.ledger->sync();
  s.each_sink([](Sink& sink) {
    sink.end(true);
    sink.sync();
  });
}

void RunLog::State::print_training() {
  const int64_t steps = std::max(run.last_step.step, options.resumed_step);
  std::string loss = fmt::format("{:.4f} at the last step", run.last_loss);
  if (run.last_loss_step == 0 && run.last_step.step > 0) {
    loss = "none: no step had a target";
  } else if (run.last_loss_step != steps && run.last_loss_step != 0) {
    loss = fmt::format("{:.4f} at step {}, the last step with a target", run.last_loss, run.last_loss_step);
  }
  console.print("  training loss       " + loss);
  if (run.evaluated != 0) {
    console.print(fmt::format("  validation loss     {:.4f}, best {:.4f} at step {}", run.last_validation, run.best,
                              run.best_step));
    if (options.optimum > 0) {
      console.print(fmt::format("  known optimum       {:.4f} nats per token: the validation loss is {:+.1f} % from it",
                                options.optimum, 100 * (run.last_validation / options.optimum - 1)));
    }
  }
  const double wall = run.seconds();
  console.print(fmt::format("  speed               {}, {}", with_unit(run.all.rate(), "tok/s"),
                            with_unit(run.all.rate() * options.flops_per_token, "FLOP/s")));
  console.print(
      fmt::format("  time                {}: forward and backward {}, reduction {}, optimizer {}, data {}, "
                  "evaluation {}{}",
                  duration(wall), duration(run.all.phases.forward_backward), duration(run.all.phases.reduction),
                  duration(run.all.phases.optimizer), duration(run.all.phases.data), duration(run.evaluation_seconds),
                  run.sample_seconds > 0 ? ", samples " + duration(run.sample_seconds) : std::string()));
  if (run.joules > 0) {
    console.print(fmt::format("  energy              {}, {:.3g} J per token", with_unit(run.joules, "J"),
                              run.joules_per_token()));
  }
}

}  // namespace llmtrain
