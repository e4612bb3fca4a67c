#include "metrics/run_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>
#include <limits>
#include <set>
#include <utility>

#include "core/error.hpp"
#include "core/number_text.hpp"
#include "core/terminal.hpp"
#include "metrics/append_file.hpp"
#include "metrics/console.hpp"
#include "metrics/ledger.hpp"
#include "metrics/memory_gauge.hpp"
#include "metrics/scalars.hpp"
#include "metrics/sink.hpp"
#include "metrics/sparkline.hpp"
#include "metrics/step_interval.hpp"

namespace llmtrain {

namespace {

using Clock = std::chrono::steady_clock;

constexpr double seconds_between_live = 0.1;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

}  // namespace

struct RunLog::State {
  explicit State(const RunLogOptions& o)
      : options(o), console(o.directory.empty() ? "" : o.directory + "/log.txt", o.active), start(Clock::now()) {
    if (!o.active || o.directory.empty()) return;
    ledger = std::make_unique<AppendFile>(o.directory + "/ledger.jsonl");
    for (const std::string& line : o.earlier) console.log_only(line);
    make_sinks();
    if (o.resumed) resume();
    each_sink([](Sink& sink) { sink.sync(); });
    interval.grad_norms.reserve(std::clamp<size_t>(static_cast<size_t>(o.every_steps), 1, max_grad_norms));
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
  void restore_numbers(const LogState& from);
  double wall_time() const { return earlier_seconds + seconds_since(start); }
  /// Calls see(name, field) for all fields of the log that a checkpoint keeps.
  template <class See>
  void each_number(const See& see) {
    see("wall_time", earlier_seconds);
    see("interval_loss", interval.loss);
    see("interval_seconds", interval.seconds);
    see("interval_data", interval.phases.data);
    see("interval_forward_backward", interval.phases.forward_backward);
    see("interval_reduction", interval.phases.reduction);
    see("interval_optimizer", interval.phases.optimizer);
    see("last_loss", last_loss);
    see("best_validation", best);
    see("last_validation", last_validation);
  }
  template <class See>
  void each_count(const See& see) {
    see("interval_steps", interval.steps);
    see("interval_tokens", interval.tokens);
    see("interval_processed", interval.processed);
    see("interval_left_out", interval.left_out);
    see("interval_sequences", interval.sequences);
    see("last_loss_step", last_loss_step);
    see("best_step", best_step);
    see("evaluated", evaluated);
  }

  void write_interval(const StepRecord& r, const SystemRecord& system = {});
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
  Clock::time_point start;
  std::unique_ptr<AppendFile> ledger;
  struct NamedSink {
    LogConfig::Sink name;
    std::unique_ptr<Sink> sink;
  };
  std::vector<NamedSink> sinks;
  std::string ledger_text;                        ///< current line
  Sparkline losses;                               ///< on a terminal
  double unshown_seconds = seconds_between_live;  ///< of the steps since the live line was replaced
  StepInterval interval, all;
  std::optional<EvaluationRecord> fresh;
  double last_validation = 0;
  int64_t evaluated = 0;       ///< 1: last_validation is known
  double earlier_seconds = 0;  ///< time of earlier jobs
  double best = std::numeric_limits<double>::infinity();
  int64_t best_step = 0;
  StepRecord last_step;
  double last_loss = 0;  ///< loss of the last step with a target
  int64_t last_loss_step = 0;
  double evaluation_seconds = 0;
  int64_t evaluations = 0;               ///< evaluations in this job
  Clock::time_point first_step_begin;    ///< set by this job's first step
  double evaluation_seconds_before = 0;  ///< time of evaluations before that
  double sample_seconds = 0;
};

RunLog::RunLog(const RunLogOptions& options) : state_(std::make_unique<State>(options)) {}
RunLog::~RunLog() = default;

void RunLog::print(const std::string& text) { state_->console.print(text); }
void RunLog::warn(const std::string& text) { state_->console.warn(text); }

/// Estimates the remaining time: steps at the speed of the interval, evaluations at this job's mean, and for each step
/// its share of the other time between steps so far: saving, samples, the log itself.
double RunLog::State::seconds_left(int64_t step) const {
  const auto steps_left = static_cast<double>(options.total_steps - step);
  const double of_step = interval.seconds / static_cast<double>(std::max<int64_t>(interval.steps, 1));
  const double of_evaluation =
      evaluations > 0 ? evaluation_seconds / static_cast<double>(evaluations) : options.evaluation_steps * of_step;
  const auto to_come =
      static_cast<double>(options.evaluations_left != nullptr ? options.evaluations_left(step) : int64_t{0});
  const double evaluated_between = evaluation_seconds - evaluation_seconds_before;
  const double between = std::max(seconds_since(first_step_begin) - all.seconds - evaluated_between, 0.0);
  return steps_left * (of_step + between / static_cast<double>(std::max<int64_t>(all.steps, 1))) +
         to_come * of_evaluation;
}

std::string RunLog::State::progress(const StepRecord& r) const {
  const int64_t total = std::max<int64_t>(options.total_steps, 1);
  const int width = static_cast<int>(fmt::formatted_size("{}", total));
  const double loss = interval.mean_loss();  // nan: none of these steps was good and had targets
  const char* without_loss = interval.tokens == 0 ? "no targets" : "skipped";
  std::string line = fmt::format("step {:>{}}/{} {:>3}%  loss {}", r.step, width, total, r.step * 100 / total,
                                 std::isnan(loss) ? without_loss : number_text(loss, 4));
  for (const NamedValue& metric : r.metrics) {
    if (metric.label.empty()) continue;
    const bool without = metric.label == "reward" && std::isnan(metric.value);  // no completion has one
    line += without ? "  no reward" : fmt::format("  {} {}", metric.label, number_text(metric.value, 3));
  }
  line += fresh ? fmt::format("  val {:.4f}", fresh->loss) : std::string();
  line +=
      fmt::format("  lr {:.2e}  norm {:>6}  {:>12}  {:>12}", r.learning_rate, number_text(r.grad_norm, 3),
                  with_unit(interval.rate(), "tok/s"), with_unit(interval.rate() * options.flops_per_token, "FLOP/s"));
  if (r.scaling) line += fmt::format("  scale {:g}", r.scaling->loss_scale);
  return line + (r.step < total ? "  left " + duration(seconds_left(r.step)) : std::string());
}

/// Line between those of progress(): first what is wanted of a line that moves, then as much as there is room for.
std::string RunLog::State::live_text(const StepRecord& r) const {
  const int64_t total = std::max<int64_t>(options.total_steps, 1);
  const double done = static_cast<double>(r.step) / static_cast<double>(total), loss = interval.mean_loss();
  std::string line = fmt::format("step {}/{}", r.step, options.total_steps);
  if (console.width() >= 60) line += "  " + bar_text(done, console.width() >= 100 ? 32 : 18);
  line += fmt::format("  {}%", r.step * 100 / total);
  if (!std::isnan(loss)) line += "  loss " + number_text(loss, 4);
  if (const std::string curve = losses.text(); locale_is_utf8() && !curve.empty()) line += " " + curve;
  if (r.step < total) line += "  left " + duration(seconds_left(r.step));
  return line + fmt::format("  {}  norm {}  lr {:.2e}", with_unit(interval.rate(), "tok/s"),
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
  const auto mean = [steps = static_cast<double>(interval.steps)](double sum) { return sum / steps; };
  IntervalRecord record;
  record.last = r;
  record.wall_time = wall_time();
  record.loss_mean = interval.mean_loss();
  record.tokens_per_second = interval.rate();
  record.flops_per_second = interval.rate() * options.flops_per_token;
  record.memory = memory.bytes();
  record.memory_libraries = libraries;
  record.memory_planned = options.memory_bytes;
  record.seconds = mean(interval.seconds);
  const StepRecord::Phases& p = interval.phases;
  record.grad_norms = interval.grad_norms;
  record.phases = {mean(p.data), mean(p.forward_backward), mean(p.reduction), mean(p.optimizer)};
  const double seconds = std::max(interval.seconds, 1e-9);
  record.system.push_back({"samples_per_second", {}, static_cast<double>(interval.sequences) / seconds});
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
  if (s.all.steps == 0) {
    s.first_step_begin =
        Clock::now() - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(r.seconds));
    s.evaluation_seconds_before = s.evaluation_seconds;
  }
  s.interval.add(r);
  s.all.add(r);
  if (s.console.has_live() && r.bad_steps == 0 && r.tokens > 0) s.losses.add(r.loss);
  s.last_step = r;
  if (r.tokens > 0) {
    s.last_loss = r.loss;
    s.last_loss_step = r.step;
  }
  if (!ends_interval(r.step)) {
    s.show_live(r);
    return;
  }
  s.write_interval(r, system);
}

void RunLog::State::write_interval(const StepRecord& r, const SystemRecord& system) {
  console.print(progress(r));
  fresh.reset();
  IntervalRecord record = interval_record(r);
  record.system.insert(record.system.end(), system.values.begin(), system.values.end());
  each_sink([&](Sink& sink) { sink.interval(record); });
  for (const NodeNotice& notice : system.notices) {
    if (notice.slow) {
      console.warn(notice_text(notice));
    } else {
      console.print(notice_text(notice));
    }
    each_sink([&](Sink& sink) { sink.notice(notice, record.wall_time); });
  }
  interval.clear();
}

void RunLog::evaluation(const EvaluationRecord& r) {
  State& s = *state_;
  if (!s.options.active) return;
  if (r.tokens > 0) {
    s.fresh = r;
    s.last_validation = r.loss;
    s.evaluated = 1;
  }
  s.evaluation_seconds += r.seconds;
  ++s.evaluations;
  if (r.best) {
    s.best = r.loss;
    s.best_step = r.step;
  }
  if (s.ledger) s.ledger->append(ledger_line(r));
  const double wall = s.wall_time();
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

void RunLog::State::restore_numbers(const LogState& from) {
  each_number([&](const char* name, double& field) {
    if (const auto value = from.values.find(std::string("log_") + name); value != from.values.end())
      field = value->second;
  });
  each_count([&](const char* name, int64_t& field) {
    if (const auto count = from.counters.find(std::string("log_") + name); count != from.counters.end())
      field = count->second;
  });
}

void RunLog::State::make_sinks() {
  SinkOptions sink;
  sink.directory = options.directory;
  sink.scales_loss = options.scales_loss;
  sink.metrics = options.metrics;
  sink.scores = options.scores;
  sink.ranks = options.ranks;
  sink.name = options.name;
  sink.settings = options.settings;
  for (DeckSetting& setting : sink.settings) setting.value = with_valid_utf8(setting.value);
  sink.wandb = options.wandb;
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
  restore_numbers(*options.resumed);
  each_sink([&](Sink& sink) {
    const std::string warning = sink.resume(options.resumed_step, options.resumed->pending, earlier_seconds);
    if (!warning.empty()) console.warn(warning);
  });
}

void RunLog::roll_back(const RollbackRecord& r, const LogState& from) {
  State& s = *state_;
  if (!s.options.active) return;
  const double wall = s.wall_time();
  s.console.warn(problem_text(r));
  if (s.ledger) s.ledger->append(ledger_line(r));
  s.interval.clear();
  s.fresh.reset();
  s.restore_numbers(from);
  s.earlier_seconds = wall - seconds_since(s.start);
  s.each_sink([&](Sink& sink) { sink.roll_back(r, from.pending, wall); });
}

double RunLog::wall_time() const { return state_->wall_time(); }

LogState RunLog::save() {
  State& s = *state_;
  LogState state;
  if (!s.options.active) return state;
  if (s.ledger) s.ledger->sync();
  s.each_sink([](Sink& sink) { sink.sync(); });
  s.each_number([&](const char* name, const double& field) { state.values[std::string("log_") + name] = field; });
  s.each_count([&](const char* name, const int64_t& field) { state.counters[std::string("log_") + name] = field; });
  state.values["log_wall_time"] = s.wall_time();
  return state;
}

void RunLog::samples(const SampleRecord& r) {
  State& s = *state_;
  s.sample_seconds += r.seconds;
  SampleRecord valid{r.step, {}, r.seconds};
  for (const SampleRecord::Sample& sample : r.samples) {
    valid.samples.push_back({with_valid_utf8(sample.prompt), with_valid_utf8(sample.text)});
    std::string text;
    for (char c : sample.prompt + sample.text) text += c == '\n' ? "\n  | " : std::string(1, c);
    s.console.print(fmt::format("step {}  sample\n  | {}", r.step, text));
  }
  const double wall = s.wall_time();
  s.each_sink([&](Sink& sink) { sink.samples(valid, wall); });
}

void RunLog::stop(const std::string& reason) {
  State& s = *state_;
  if (!s.options.active) return;
  s.console.print("");
  s.console.print(reason);
  s.console.print(fmt::format("  results             {}", s.options.directory));
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
  if (s.interval.steps > 0) s.write_interval(s.last_step);
  s.console.print("");
  s.console.print(reason);
  if (s.options.total_steps > 0) s.print_training();
  if (!s.options.directory.empty()) s.console.print(fmt::format("  results             {}", s.options.directory));
  if (s.ledger) s.ledger->sync();
  s.each_sink([](Sink& sink) {
    sink.end(true);
    sink.sync();
  });
}

void RunLog::State::print_training() {
  const int64_t steps = std::max(last_step.step, options.resumed_step);
  std::string loss = fmt::format("{:.4f} at the last step", last_loss);
  if (last_loss_step == 0 && last_step.step > 0) {
    loss = "none: no step had a target";
  } else if (last_loss_step != steps && last_loss_step != 0) {
    loss = fmt::format("{:.4f} at step {}, the last step with a target", last_loss, last_loss_step);
  }
  console.print("  training loss       " + loss);
  if (evaluated != 0) {
    console.print(
        fmt::format("  validation loss     {:.4f}, best {:.4f} at step {}", last_validation, best, best_step));
    if (options.optimum > 0) {
      console.print(fmt::format("  known optimum       {:.4f} nats per token: the validation loss is {:+.1f} % from it",
                                options.optimum, 100 * (last_validation / options.optimum - 1)));
    }
  }
  const double wall = seconds_since(start);
  console.print(fmt::format("  speed               {}, {}", with_unit(all.rate(), "tok/s"),
                            with_unit(all.rate() * options.flops_per_token, "FLOP/s")));
  console.print(
      fmt::format("  time                {}: forward and backward {}, reduction {}, optimizer {}, data {}, "
                  "evaluation {}{}",
                  duration(wall), duration(all.phases.forward_backward), duration(all.phases.reduction),
                  duration(all.phases.optimizer), duration(all.phases.data), duration(evaluation_seconds),
                  sample_seconds > 0 ? ", samples " + duration(sample_seconds) : std::string()));
}

}  // namespace llmtrain
