#include "metrics/scalars.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/utf8.hpp"

namespace llmtrain {

namespace {

void add_values(std::vector<Scalar>& all, const std::string& group, const std::vector<NamedValue>& values) {
  for (const NamedValue& value : values) all.push_back({group + value.name, value.value});
}

}  // namespace

std::vector<Scalar> scalars_of(const IntervalRecord& r) {
  const StepRecord& last = r.last;
  std::vector<Scalar> all = {
      {"train/loss", r.loss_mean},
      {"train/grad_norm", last.grad_norm},
      {"train/learning_rate", last.learning_rate},
      {"train/tokens", static_cast<double>(last.tokens)},
  };
  if (last.scaling) {
    all.push_back({"train/loss_scale", last.scaling->loss_scale});
    all.push_back({"train/skipped_steps", static_cast<double>(last.scaling->skipped_steps)});
  }
  add_values(all, "train/", last.metrics);
  all.insert(all.end(), {{"throughput/tokens_per_second", r.tokens_per_second},
                         {"throughput/flops_per_second", r.flops_per_second},
                         {"memory/used_bytes", static_cast<double>(r.memory)},
                         {"memory/planned_bytes", static_cast<double>(r.memory_planned)},
                         {"seconds/step", r.seconds},
                         {"seconds/data", r.phases.data},
                         {"seconds/forward_backward", r.phases.forward_backward},
                         {"seconds/reduction", r.phases.reduction},
                         {"seconds/optimizer", r.phases.optimizer}});
  for (const NamedValue& value : r.system) {
    const bool grouped = value.name.find('/') != std::string::npos;
    all.push_back({grouped ? value.name : "throughput/" + value.name, value.value});
  }
  return all;
}

std::vector<Scalar> scalars_of(const EvaluationRecord& r) {
  const std::string group = validation_group;
  std::vector<Scalar> all;
  if (r.tokens > 0) all.push_back({group + "loss", r.loss});
  if (r.tokens > 0 && r.metrics.empty()) all.push_back({group + "perplexity", std::exp(r.loss)});
  if (r.token_accuracy) all.push_back({group + "token_accuracy", *r.token_accuracy});
  add_values(all, group, r.metrics);
  add_values(all, group, r.scores);
  all.push_back({group + "seconds", r.seconds});
  return all;
}

Histogram histogram_of(const std::vector<double>& values, size_t bins) {
  Histogram histogram;
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    low = std::min(low, value);
    high = std::max(high, value);
    histogram.sum += value;
    histogram.sum_of_squares += value * value;
    ++histogram.count;
  }
  if (histogram.count == 0) return histogram;
  const double width = (high - low) / static_cast<double>(bins);
  if (!(width > 0)) bins = 1;
  histogram.counts.resize(bins);
  for (size_t i = 0; i < bins; ++i) histogram.edges.push_back(low + width * static_cast<double>(i));
  histogram.edges.push_back(high);
  for (const double value : values) {
    if (!std::isfinite(value)) continue;
    const double place = width > 0 ? (value - low) / width : 0;
    ++histogram.counts[std::min(static_cast<size_t>(place), bins - 1)];
  }
  return histogram;
}

std::string with_valid_utf8(std::string_view text) {
  std::string valid;
  for (size_t bad = 0; (bad = find_invalid_utf8(text)) != std::string_view::npos; text.remove_prefix(bad + 1)) {
    valid.append(text.substr(0, bad)).append("\xEF\xBF\xBD");
  }
  return valid.append(text);
}

std::variant<bool, double, std::string> typed_value(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && std::isfinite(number)) return number;
  return text;
}

}  // namespace llmtrain
