#include "metrics/ledger.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <span>
#include <utility>

#include "core/number_text.hpp"

namespace llmtrain {
namespace {

template <class... Args>
void append(std::string& line, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(line), format, std::forward<Args>(args)...);
}

/// The sign of NaN has no meaning.
void append_exact(std::string& line, double value) {
  if (std::isnan(value)) {
    line += "nan";
  } else {
    append(line, "{:a}", value);
  }
}

void append_loss(std::string& line, double loss, int64_t tokens) {
  if (tokens == 0) {
    line += "null";
    return;
  }
  line += '"';
  append_exact(line, loss);
  line += '"';
}

void append_metrics(std::string& line, const std::vector<NamedValue>& metrics) {
  if (metrics.empty()) return;
  line += R"(,"metrics":{)";
  for (const NamedValue& metric : metrics) {
    append(line, R"({}"{}":")", &metric == metrics.data() ? "" : ",", metric.name);
    append_exact(line, metric.value);
    line += '"';
  }
  line += '}';
}

}  // namespace

void ledger_line(const StepRecord& r, std::string& line) {
  line.clear();
  append(line, R"({{"step":{},"learning_rate":"{:a}","loss":)", r.step, r.learning_rate);
  append_loss(line, r.loss, r.tokens);
  line += R"(,"grad_norm":")";
  append_exact(line, r.grad_norm);
  append(line, R"(","tokens":{},"samples":"{:016x}")", r.tokens, r.samples);
  if (r.scaling) append(line, R"(,"loss_scale":"{:a}")", r.scaling->loss_scale);
  if (r.scaling && r.scaling->skipped) append(line, R"(,"skipped_steps":{})", r.scaling->skipped_steps);
  if (r.bad_steps > 0) {
    append(line, R"(,"bad_steps":{},"sample_ids":[{}])", r.bad_steps, fmt::join(r.sample_ids, ","));
  }
  append_metrics(line, r.metrics);
  if (r.parameters) append(line, R"(,"parameters":"{:016x}")", *r.parameters);
  line += "}\n";
}

std::string ledger_line(const EvaluationRecord& r) {
  std::string line = fmt::format(R"({{"step":{},"validation_loss":)", r.step);
  append_loss(line, r.loss, r.tokens);
  std::vector<NamedValue> metrics = r.metrics;
  metrics.insert(metrics.end(), r.scores.begin(), r.scores.end());
  append_metrics(line, metrics);
  return line + "}\n";
}

std::string ledger_line(const RollbackRecord& r) {
  return fmt::format("{{\"step\":{},\"rolled_back_from\":{},\"skipped_data\":[{},{}]}}\n", r.step, r.from,
                     r.first_skipped, r.last_skipped);
}

std::string problem_text(const StepRecord& r) {
  constexpr size_t max_shown = 8;
  const std::span shown(r.sample_ids.data(), std::min(r.sample_ids.size(), max_shown));
  const size_t more = r.sample_ids.size() - shown.size();
  const std::string samples = r.places.empty() ? fmt::format("Samples {}", fmt::join(shown, ", "))
                                               : fmt::format("Prompts {}", fmt::join(r.places, ", "));
  return fmt::format("step {}: {} (loss {}, gradient norm {}); the update is skipped. {}{}", r.step, r.problem,
                     number_text(r.loss, 4), number_text(r.grad_norm, 4), samples,
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

std::string skip_text(const StepRecord& r) {
  return fmt::format("step {}: gradients overflow at a loss scale of {:g}; the step is skipped ({} so far)", r.step,
                     r.scaling->loss_scale, r.scaling->skipped_steps);
}

std::string problem_text(const RollbackRecord& r) {
  return fmt::format("step {}: {}; returning to the checkpoint of step {}{}", r.from, r.reason, r.step,
                     r.last_skipped > r.first_skipped
                         ? fmt::format("; the data of the next {} steps are skipped", r.last_skipped - r.first_skipped)
                         : "");
}

std::string notice_text(const NodeNotice& notice) {
  if (notice.replay != NodeNotice::Replay::none) {
    return fmt::format("{} {}: a replay found other gradients on rank{} {}", notice.host,
                       notice.replay == NodeNotice::Replay::wrong ? "computes wrongly" : "may compute wrongly",
                       notice.ranks.size() == 1 ? "" : "s", fmt::join(notice.ranks, ", "));
  }
  if (!notice.slow) {
    return fmt::format("{} has recovered: its ranks need {:.2f} x the time of the median rank for their own work",
                       notice.host, notice.ratio);
  }
  return fmt::format(
      "{} is slow: rank{} {} need{} {:.2f} x the time of the median rank for the same work, and all ranks wait. "
      "Compare the node's clocks, temperature and load with those of others (metrics system/{}/...)",
      notice.host, notice.ranks.size() == 1 ? "" : "s", fmt::join(notice.ranks, ", "),
      notice.ranks.size() == 1 ? "s" : "", notice.ratio, notice.host);
}

}  // namespace llmtrain
