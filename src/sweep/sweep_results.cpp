#include "sweep/sweep_results.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "report/run_facts.hpp"
#include "report/text_table.hpp"

namespace llmtrain {

namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// The number before " parameters" in the line that describes the model; 0 without one.
double parameters_of(const RunReader& run) {
  constexpr size_t lines_before_training = 40;
  for (const std::string& line : run.log_head(lines_before_training)) {
    const size_t end = line.find(" parameters");
    if (!line.starts_with("model ") || end == std::string::npos) continue;
    std::string digits = line.substr(0, end);
    digits = digits.substr(digits.rfind(' ') + 1);
    std::erase(digits, ',');
    return std::strtod(digits.c_str(), nullptr);
  }
  return 0;
}

/// Trained tokens of all steps of the ledger.
double tokens_of(const fs::path& ledger) {
  double tokens = 0;
  std::ifstream in(ledger);
  for (std::string line; std::getline(in, line);) {
    const ordered_json j = ordered_json::parse(line, nullptr, false);
    if (j.is_object() && j.contains("grad_norm") && j.contains("tokens") && j["tokens"].is_number()) {
      tokens += j["tokens"].get<double>();
    }
  }
  return tokens;
}

SweepResult read_result(const SweepFile& sweep, SweepRun run, const fs::path& folder) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  SweepResult result{std::move(run), "not begun", {0, none}, {}};
  const fs::path path = folder / result.run.name;
  std::error_code error;
  if (!fs::exists(path / "deck.ini", error)) return result;
  RunReader reader(path);
  reader.refresh();
  const std::string& metric = sweep.config.metric;
  result.state = state_text(reader);
  const auto series = reader.metrics().find(metric);
  if (series == reader.metrics().end()) return result;
  result.best = better_values(metric) == Better::higher ? highest_point(series->second) : lowest_point(series->second);
  if (reader.finished() && better_values(metric) == Better::lower) {
    result.point = {parameters_of(reader), tokens_of(path / "ledger.jsonl"), last_point(series->second).value};
  }
  return result;
}

std::string csv_text(std::string text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  for (size_t i = text.find('"'); i != std::string::npos; i = text.find('"', i + 2)) text.insert(i, 1, '"');
  return '"' + text + '"';
}

}  // namespace

std::vector<SweepResult> read_results(const SweepFile& sweep, std::vector<SweepRun> runs, const fs::path& folder) {
  std::vector<SweepResult> results;
  results.reserve(runs.size());
  for (SweepRun& run : runs) results.push_back(read_result(sweep, std::move(run), folder));
  const bool higher = better_values(sweep.config.metric) == Better::higher;
  std::ranges::stable_sort(results, [&](const SweepResult& a, const SweepResult& b) {
    if (std::isnan(a.best.value) || std::isnan(b.best.value))
      return !std::isnan(a.best.value) && std::isnan(b.best.value);
    return higher ? a.best.value > b.best.value : a.best.value < b.best.value;
  });
  return results;
}

std::string results_text(const SweepFile& sweep, std::span<const SweepResult> results, size_t width) {
  std::vector<TextRow> rows = {{"run", "state", sweep.config.metric, "step"}};
  for (const SweepChoice& choice : sweep.choices) rows.front().push_back(choice.key);
  for (const SweepResult& result : results) {
    const bool known = !std::isnan(result.best.value);
    rows.push_back({result.run.name, result.state, known ? point_text(sweep.config.metric, result.best) : "-",
                    known ? std::to_string(result.best.step) : "-"});
    for (const std::optional<std::string>& value : result.run.values) rows.back().push_back(value.value_or("-"));
  }
  return aligned_text(std::move(rows), width);
}

std::string results_csv(const SweepFile& sweep, std::span<const SweepResult> results) {
  std::string text = "run,state,step," + csv_text(sweep.config.metric);
  for (const SweepChoice& choice : sweep.choices) text += ',' + csv_text(choice.key);
  text += '\n';
  for (const SweepResult& result : results) {
    const bool known = !std::isnan(result.best.value);
    text +=
        fmt::format("{},{},{},{}", result.run.name, csv_text(result.state),
                    known ? std::to_string(result.best.step) : "", known ? fmt::format("{}", result.best.value) : "");
    for (const std::optional<std::string>& value : result.run.values) text += ',' + csv_text(value.value_or(""));
    text += '\n';
  }
  return text;
}

std::string results_json(const SweepFile& sweep, std::span<const SweepResult> results) {
  ordered_json json = {{"metric", sweep.config.metric}, {"runs", ordered_json::array()}};
  for (const SweepResult& result : results) {
    ordered_json run = {{"name", result.run.name}, {"state", result.state}, {"best", nullptr}, {"step", nullptr}};
    if (!std::isnan(result.best.value)) {
      run["best"] = result.best.value;
      run["step"] = result.best.step;
    }
    run["values"] = ordered_json::object();
    for (size_t i = 0; i < sweep.choices.size(); ++i) {
      const std::optional<std::string>& value = result.run.values[i];
      run["values"][sweep.choices[i].key] = value ? ordered_json(*value) : ordered_json();
    }
    json["runs"].push_back(std::move(run));
  }
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

std::string power_law_text(std::span<const SweepResult> results) {
  std::map<std::pair<double, double>, LossPoint> best;
  for (const SweepResult& result : results) {
    if (!result.point) continue;
    LossPoint& point = best.try_emplace({result.point->parameters, result.point->tokens}, *result.point).first->second;
    point.loss = std::min(point.loss, result.point->loss);
  }
  std::vector<LossPoint> points;
  points.reserve(best.size());
  for (const auto& [size, point] : best) points.push_back(point);
  const PowerLaw law = fit_power_law(points);
  const auto with_error = [&](PowerLaw::Coefficient which) {
    return fmt::format("{:.3g} +- {:.1g}", law.values[which], law.errors[which]);
  };
  // The relative error of exp(x) is the error of x.
  const auto factor = [&](PowerLaw::Coefficient which) {
    const double value = std::exp(law.values[which]);
    return fmt::format("{:.4g} +- {:.1g}", value, value * law.errors[which]);
  };
  std::string text =
      fmt::format("L = E{}{} of N parameters and D tokens: {} pairs of them, the best run of each\n",
                  law.has_parameters ? " + A / N^alpha" : "", law.has_tokens ? " + B / D^beta" : "", points.size());
  text += fmt::format("  E      {}\n", factor(PowerLaw::log_e));
  if (law.has_parameters) {
    text += fmt::format("  A      {}\n  alpha  {}\n", factor(PowerLaw::log_a), with_error(PowerLaw::alpha));
  }
  if (law.has_tokens) {
    text += fmt::format("  B      {}\n  beta   {}\n", factor(PowerLaw::log_b), with_error(PowerLaw::beta));
  }
  text += fmt::format("  largest difference from a run: {:.2g} %\n", 100 * std::expm1(law.largest_residual));
  if (law.has_parameters && law.has_tokens) {
    const double alpha = law.values[PowerLaw::alpha], beta = law.values[PowerLaw::beta];
    text += fmt::format("  with C = 6 N D the best N grows as C^{:.2f}, the best D as C^{:.2f}\n",
                        beta / (alpha + beta), alpha / (alpha + beta));
  }
  return text;
}

}  // namespace llmtrain
