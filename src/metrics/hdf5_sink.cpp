// Metrics of a run in metrics.h5: the groups /train and /validation.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "core/error.hpp"
#include "metrics/metrics_hdf5.hpp"
#include "metrics/sink.hpp"

namespace llmtrain {

namespace {

class Hdf5Sink : public Sink {
 public:
  explicit Hdf5Sink(const SinkOptions& options) : path_(options.directory + "/metrics.h5") {
    scales_loss_ = options.scales_loss;
    if (scales_loss_) {
      train_.columns.push_back({"loss_scale", "1", {}});
      train_.columns.push_back({"skipped_steps", "steps", {}});
    }
    for (const std::string& metric : options.metrics) {
      for (MetricsTable* table : {&train_, &validation_}) table->columns.push_back({metric, "1", {}});
    }
    for (const std::string& score : options.scores) validation_.columns.push_back({score, "1", {}, true});
  }

  void interval(const IntervalRecord& r) override;
  void evaluation(const EvaluationRecord& r, double wall_time) override;
  std::string resume(int64_t step, PendingWork pending, double wall_time) override;
  void roll_back(const RollbackRecord& r, PendingWork pending, double /*wall_time*/) override {
    cut(r.step, pending.evaluation);
  }
  void sync() override {
    const Clock::time_point begin = Clock::now();
    write_metrics_hdf5(path_, {train_, validation_});
    written_ = Clock::now();
    cost_ = written_ - begin;
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// Writes a complete file each time; this takes at most 1 % of the run, however long the columns grow.
  void sync_sometimes() {
    if (Clock::now() - written_ > 100 * cost_) sync();
  }
  /// Removes rows of later steps, and the evaluation after this step that is pending.
  void cut(int64_t step, bool evaluation_pending) {
    for (MetricsTable* table : {&train_, &validation_}) {
      const auto last = static_cast<double>(table == &validation_ && evaluation_pending ? step - 1 : step);
      const std::vector<double>& steps = table->columns.front().values;
      const auto end = std::ranges::find_if(steps, [&](double s) { return !(s <= last); });
      table->cut(static_cast<size_t>(end - steps.begin()));
    }
  }

  std::string path_;
  bool scales_loss_ = false;
  Clock::time_point written_ = Clock::now();
  Clock::duration cost_ = Clock::duration::zero();
  MetricsTable train_{"train",
                      {{"step", "1", {}},
                       {"wall_time", "s", {}},
                       {"loss", "nats per token", {}},
                       {"loss_mean", "nats per token", {}},
                       {"grad_norm", "1", {}},
                       {"learning_rate", "1", {}},
                       {"tokens", "tokens", {}},
                       {"tokens_per_second", "tokens/s", {}},
                       {"flops_per_second", "FLOP/s", {}},
                       {"memory", "bytes", {}}}};
  MetricsTable validation_{"validation",
                           {{"step", "1", {}},
                            {"wall_time", "s", {}},
                            {"loss", "nats per token", {}},
                            {"perplexity", "1", {}},
                            {"tokens", "tokens", {}},
                            {"best", "1 = best so far", {}}}};
};

void Hdf5Sink::interval(const IntervalRecord& r) {
  const StepRecord& last = r.last;
  std::vector<double> row = {static_cast<double>(last.step),
                             r.wall_time,
                             last.tokens > 0 ? last.loss : std::numeric_limits<double>::quiet_NaN(),
                             r.loss_mean,
                             last.grad_norm,
                             last.learning_rate,
                             static_cast<double>(last.tokens),
                             r.tokens_per_second,
                             r.flops_per_second,
                             static_cast<double>(r.memory)};
  if (scales_loss_) {
    const StepRecord::Scaling scaling = last.scaling.value_or(StepRecord::Scaling());
    row.push_back(scaling.loss_scale);
    row.push_back(static_cast<double>(scaling.skipped_steps));
  }
  for (const NamedValue& metric : last.metrics) row.push_back(metric.value);
  train_.add(row);
  sync_sometimes();
}

void Hdf5Sink::evaluation(const EvaluationRecord& r, double wall_time) {
  constexpr double none = std::numeric_limits<double>::quiet_NaN();
  const double loss = r.tokens > 0 ? r.loss : none;
  std::vector<double> row = {
      static_cast<double>(r.step),   wall_time,         loss, r.metrics.empty() ? std::exp(loss) : none,
      static_cast<double>(r.tokens), r.best ? 1.0 : 0.0};
  // An evaluation may have fewer metrics than a step.
  for (size_t i = row.size(); i < validation_.columns.size(); ++i) {
    double value = none;
    for (const auto& values : {std::cref(r.metrics), std::cref(r.scores)}) {
      const auto found = std::ranges::find(values.get(), validation_.columns[i].name, &NamedValue::name);
      if (found != values.get().end()) value = found->value;
    }
    row.push_back(value);
  }
  validation_.add(row);
  sync_sometimes();
}

std::string Hdf5Sink::resume(int64_t step, PendingWork pending, double /*wall_time*/) {
  if (!std::filesystem::exists(path_)) return {};
  std::string warning;
  for (MetricsTable* table : {&train_, &validation_}) {
    try {
      read_metrics_hdf5(path_, *table);
    } catch (const UserError& error) {
      warning +=
          fmt::format("{}{}; /{} restarts at step {}", warning.empty() ? "" : "\n", error.what(), table->name, step);
    }
  }
  cut(step, pending.evaluation);
  return warning;
}

}  // namespace

std::unique_ptr<Sink> make_hdf5_sink(const SinkOptions& options) { return std::make_unique<Hdf5Sink>(options); }

}  // namespace llmtrain
