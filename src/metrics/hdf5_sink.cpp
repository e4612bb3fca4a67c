// Metrics of a run in metrics.h5: the groups /train and /validation, for the confusion matrices of evaluations
// /confusion, and, for what a job measures of its nodes and ranks and layers, /system, /ranks, /traffic, /energy,
// /replay and /experts.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <span>

#include "core/error.hpp"
#include "metrics/metrics_hdf5.hpp"
#include "metrics/sink.hpp"

namespace llmtrain {

namespace {

constexpr double none = std::numeric_limits<double>::quiet_NaN();

/// Limit of columns of /system, /ranks, /traffic and /experts, which are in the memory of rank 0; metrics.jsonl has all
/// values.
constexpr size_t max_measured_columns = 256;
/// Likewise of /confusion.
constexpr size_t max_confusion_labels = 32;

MetricsTable train_table() {
  return {"train",
          {{"step", "1", {}},
           {"wall_time", "s", {}},
           {"loss", "nats per token", {}},
           {"loss_mean", "nats per token", {}},
           {"grad_norm", "1", {}},
           {"learning_rate", "1", {}},
           {"tokens", "tokens", {}},
           {"tokens_per_second", "tokens/s", {}},
           {"samples_per_second", "samples/s", {}, true},
           {"flops_per_second", "FLOP/s", {}},
           {"mfu", "1", {}, true},
           {"memory", "bytes", {}}}};
}

MetricsTable validation_table() {
  return {"validation",
          {{"step", "1", {}},
           {"wall_time", "s", {}},
           {"loss", "nats per token", {}},
           {"perplexity", "1", {}},
           {"tokens", "tokens", {}},
           {"best", "1 = best so far", {}}}};
}

/// The value of this name; NaN if there is none.
double value_of(const std::vector<NamedValue>& values, const std::string& name) {
  const auto found = std::ranges::find(values, name, &NamedValue::name);
  return found == values.end() ? none : found->value;
}

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
    write_metrics_hdf5(path_, tables_);
    written_ = Clock::now();
    cost_ = written_ - begin;
  }

 private:
  using Clock = std::chrono::steady_clock;

  /// Writes a complete file each time; this takes at most 0.5 % of the run, however long the columns grow.
  void sync_sometimes() {
    if (Clock::now() - written_ > 200 * cost_) sync();
  }
  void add_measured(MetricsTable& table, const IntervalRecord& r);
  void add_confusion(const EvaluationRecord& r, double wall_time);
  void cut(int64_t step, bool evaluation_pending);

  std::string path_;
  bool scales_loss_ = false;
  Clock::time_point written_ = Clock::now();
  Clock::duration cost_ = Clock::duration::zero();
  std::vector<MetricsTable> tables_{train_table(),  validation_table(), {"system", {}},
                                    {"ranks", {}},  {"traffic", {}},    {"energy", {}},
                                    {"replay", {}}, {"experts", {}},    {"confusion", {}}};
  MetricsTable &train_ = tables_[0], &validation_ = tables_[1], &confusion_ = tables_[8];
  std::span<MetricsTable> measured_{tables_.data() + 2, 6};  ///< with columns as the nodes have them
};

/// Adds what the interval has under the table's name, e.g. "system/node1/cpu_percent", if it has something.
void Hdf5Sink::add_measured(MetricsTable& table, const IntervalRecord& r) {
  std::vector<NamedValue> row = {{"step", {}, static_cast<double>(r.last.step)}, {"wall_time", {}, r.wall_time}};
  const std::string prefix = table.name + "/";
  for (const NamedValue& value : r.system) {
    if (value.name.starts_with(prefix)) row.push_back({value.name.substr(prefix.size()), {}, value.value});
  }
  if (row.size() > 2) table.add(row, max_measured_columns);
}

/// Adds the matrix under names of numbers of labels, "true/predicted".
void Hdf5Sink::add_confusion(const EvaluationRecord& r, double wall_time) {
  if (r.labels.empty() || r.labels.size() > max_confusion_labels) return;
  std::vector<NamedValue> row = {{"step", {}, static_cast<double>(r.step)}, {"wall_time", {}, wall_time}};
  for (size_t i = 0; i < r.confusion.size(); ++i) {
    const std::string cell = fmt::format("{}/{}", i / r.labels.size(), i % r.labels.size());
    row.push_back({cell, {}, static_cast<double>(r.confusion[i])});
  }
  confusion_.add(row, row.size());
}

/// Removes rows of later steps, and the evaluation after this step that is pending.
void Hdf5Sink::cut(int64_t step, bool evaluation_pending) {
  for (MetricsTable& table : tables_) {
    const MetricsTable::Column* steps = table.find("step");
    if (steps == nullptr) continue;
    const bool of_evaluation = &table == &validation_ || &table == &confusion_;
    const auto last = static_cast<double>(of_evaluation && evaluation_pending ? step - 1 : step);
    const auto end = std::ranges::find_if(steps->values, [&](double s) { return !(s <= last); });
    table.cut(static_cast<size_t>(end - steps->values.begin()));
  }
}

void Hdf5Sink::interval(const IntervalRecord& r) {
  const StepRecord& last = r.last;
  std::vector<double> row = {static_cast<double>(last.step),
                             r.wall_time,
                             last.tokens > 0 ? last.loss : none,
                             r.loss_mean,
                             last.grad_norm,
                             last.learning_rate,
                             static_cast<double>(last.tokens),
                             r.tokens_per_second,
                             value_of(r.system, "samples_per_second"),
                             r.flops_per_second,
                             value_of(r.system, "mfu"),
                             static_cast<double>(r.memory)};
  if (scales_loss_) {
    const StepRecord::Scaling scaling = last.scaling.value_or(StepRecord::Scaling());
    row.push_back(scaling.loss_scale);
    row.push_back(static_cast<double>(scaling.skipped_steps));
  }
  for (const NamedValue& metric : last.metrics) row.push_back(metric.value);
  train_.add(row);
  for (MetricsTable& table : measured_) add_measured(table, r);
  sync_sometimes();
}

void Hdf5Sink::evaluation(const EvaluationRecord& r, double wall_time) {
  const double loss = r.tokens > 0 ? r.loss : none;
  std::vector<double> row = {
      static_cast<double>(r.step),   wall_time,         loss, r.metrics.empty() ? std::exp(loss) : none,
      static_cast<double>(r.tokens), r.best ? 1.0 : 0.0};
  // An evaluation may have fewer metrics than a step.
  for (size_t i = row.size(); i < validation_.columns.size(); ++i) {
    const std::string& name = validation_.columns[i].name;
    const double score = value_of(r.scores, name);
    row.push_back(std::isnan(score) ? value_of(r.metrics, name) : score);
  }
  validation_.add(row);
  add_confusion(r, wall_time);
  sync_sometimes();
}

std::string Hdf5Sink::resume(int64_t step, PendingWork pending, double /*wall_time*/) {
  if (!std::filesystem::exists(path_)) return {};
  std::string warning;
  for (MetricsTable& table : tables_) {
    try {
      if (table.columns.empty()) {
        table = read_metrics_table(path_, table.name);
      } else {
        read_metrics_hdf5(path_, table);
      }
    } catch (const UserError& error) {
      warning +=
          fmt::format("{}{}; /{} restarts at step {}", warning.empty() ? "" : "\n", error.what(), table.name, step);
    }
  }
  cut(step, pending.evaluation);
  return warning;
}

}  // namespace

std::unique_ptr<Sink> make_hdf5_sink(const SinkOptions& options) { return std::make_unique<Hdf5Sink>(options); }

}  // namespace llmtrain
