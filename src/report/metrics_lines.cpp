#include "report/metrics_lines.hpp"

#include <algorithm>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

namespace llmtrain {
namespace {

using Json = nlohmann::json;

int64_t integer(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
}

double number(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>() : 0;
}

std::string text(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_string() ? found->get<std::string>() : "";
}

/// Reads a number as the ledger writes it: a text of `%a`, or null.
double exact_number(const Json& line, const char* key) {
  const std::string printed = text(line, key);
  return printed.empty() ? std::numeric_limits<double>::quiet_NaN() : std::strtod(printed.c_str(), nullptr);
}

/// Appends the value. A step that is not later than the last one was done again.
void add(MetricSeries& series, int64_t step, double value) {
  if (!series.steps.empty() && series.steps.back() >= step) {
    const auto again = std::ranges::lower_bound(series.steps, step);
    series.values.resize(static_cast<size_t>(again - series.steps.begin()));
    series.steps.erase(again, series.steps.end());
  }
  series.steps.push_back(step);
  series.values.push_back(value);
}

void go_back(MetricsLines& log, int64_t step) {
  for (auto& [name, series] : log.metrics) {
    const auto later = std::ranges::upper_bound(series.steps, step);
    series.values.resize(static_cast<size_t>(later - series.steps.begin()));
    series.steps.erase(later, series.steps.end());
  }
  std::erase_if(log.metrics, [](const auto& metric) { return metric.second.steps.empty(); });
  std::erase_if(log.samples, [&](const RunSample& sample) { return sample.step > step; });
  std::erase_if(log.confusions, [&](const Confusion& confusion) { return confusion.step > step; });
  std::erase_if(log.best_steps, [&](int64_t best) { return best > step; });
  log.last_step = std::min(log.last_step, step);
}

/// Adds the numbers of a line under `prefix`; those of an object in it under its name.
void add_numbers(MetricsLines& log, const Json& line, int64_t step, const std::string& prefix) {
  for (const auto& [name, value] : line.items()) {
    if (prefix.empty() && (name == "step" || name == "best")) continue;
    if (value.is_number()) {
      add(log.metrics[prefix + name], step, value.get<double>());
    } else if (value.is_null()) {
      add(log.metrics[prefix + name], step, std::numeric_limits<double>::quiet_NaN());
    } else if (value.is_object() && prefix.empty()) {
      add_numbers(log, value, step, name + "/");
    }
  }
}

/// Replaces the matrix by that of the line, if it has a whole one.
void take_confusion(MetricsLines& log, const Json& line, int64_t step) {
  const auto found = line.find("validation_confusion");
  if (found == line.end() || !found->is_object()) return;
  try {
    Confusion confusion{step, found->at("labels"), found->at("counts")};
    const size_t size = confusion.labels.size();
    const bool square = confusion.counts.size() == size &&
                        std::ranges::all_of(confusion.counts, [&](const auto& row) { return row.size() == size; });
    if (square && size > 0) log.confusions = {std::move(confusion)};
  } catch (const Json::exception&) {  // another program's line
  }
}

void add_evaluation(MetricsLines& log, Json line, int64_t step) {
  take_confusion(log, line, step);
  line.erase("validation_confusion");
  const bool best = line["best"] == true;
  if (best && (log.best_steps.empty() || log.best_steps.back() != step)) log.best_steps.push_back(step);
  line.erase("wall_time");
  for (const auto& [old_name, new_name] :
       {std::pair{"seconds", "evaluation_seconds"}, {"perplexity", "validation_perplexity"}}) {
    if (!line.contains(old_name)) continue;
    line[new_name] = line[old_name];
    line.erase(old_name);
  }
  add_numbers(log, line, step, "");
}

void add_sample(MetricsLines& log, const Json& line, int64_t step) {
  RunSample sample{step, text(line, "prompt"), text(line, "sample")};
  std::erase_if(log.samples, [&](const RunSample& old) {
    return old.step > step || (old.step == step && old.prompt == sample.prompt);
  });
  log.samples.push_back(std::move(sample));
}

/// Returns whether the line is an event, which it adds then.
bool add_event(MetricsLines& log, const Json& line) {
  const bool resumed = line.contains("resumed_from_step");
  if (!resumed && !line.contains("rolled_back_to_step")) return false;
  RunEvent event;
  event.kind = resumed ? RunEvent::Kind::resume : RunEvent::Kind::rollback;
  event.step = integer(line, resumed ? "resumed_from_step" : "rolled_back_to_step");
  event.from = resumed ? log.last_step : integer(line, "from_step");
  event.wall_time = number(line, "wall_time");
  const int64_t ranks = integer(line, "ranks");
  event.text = resumed ? std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks") : text(line, "reason");
  if (line.contains("restart")) event.text += "; " + text(line, "restart");
  go_back(log, event.step);
  log.events.push_back(std::move(event));
  return true;
}

/// Returns whether the line is about a node, whose event it adds then.
bool add_node_event(MetricsLines& log, const Json& line, int64_t step) {
  for (const auto& [key, what] :
       {std::pair("replay/wrong_node", "computes wrongly"), std::pair("replay/doubtful_node", "may compute wrongly")}) {
    if (!line.contains(key)) continue;
    log.node_events.push_back({step, text(line, key), false, 0, what});
    return true;
  }
  const bool slow = line.contains("slow_node");
  if (!slow && !line.contains("recovered_node")) return false;
  log.node_events.push_back({step, text(line, slow ? "slow_node" : "recovered_node"), slow, number(line, "ratio")});
  return true;
}

}  // namespace

void MetricsLines::take(std::string_view line) {
  ++lines;
  const Json parsed = Json::parse(line, nullptr, false);
  const bool known = parsed.is_object() && (parsed.contains("step") || parsed.contains("resumed_from_step") ||
                                            parsed.contains("rolled_back_to_step"));
  if (!known) {
    if (bad_lines++ == 0) first_bad_line = lines;
    return;
  }
  if (const double time = number(parsed, "wall_time"); time > 0) wall_time = time;
  if (add_event(*this, parsed)) return;
  const int64_t step = integer(parsed, "step");
  if (add_node_event(*this, parsed, step)) return;
  if (parsed.contains("sample")) {
    add_sample(*this, parsed, step);
  } else if (parsed.contains("best")) {
    add_evaluation(*this, parsed, step);
  } else {
    add_numbers(*this, parsed, step, "");
  }
  last_step = step;
}

void LedgerLines::take(std::string_view line) {
  constexpr std::string_view begin = R"({"step":)";
  if (!line.starts_with(begin)) return;
  std::from_chars(line.data() + begin.size(), line.data() + line.size(), last_step);
  if (line.find(R"("bad_steps":)") == std::string_view::npos) return;  // few lines have it, and parsing all takes long
  const Json parsed = Json::parse(line, nullptr, false);
  if (parsed.is_object())
    bad_steps.push_back({last_step, exact_number(parsed, "loss"), exact_number(parsed, "grad_norm")});
}

}  // namespace llmtrain
