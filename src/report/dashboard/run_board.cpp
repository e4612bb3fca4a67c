#include "report/dashboard/run_board.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>

#include "core/error.hpp"
#include "core/files/json_reader.hpp"
#include "parallel/job/rank_status.hpp"
#include "report/charts/chart_plan.hpp"

namespace llmtrain {

namespace {

using nlohmann::ordered_json;

constexpr uint64_t calls_between_reads = 10;    ///< of runs that nobody follows
constexpr uint64_t calls_between_searches = 2;  ///< for new runs, which are listed within three seconds
constexpr size_t log_lines = 80;
constexpr size_t max_samples = 8;
constexpr size_t max_sample_bytes = 4000;
constexpr size_t series_buckets = 1000;  ///< of a series that is sent as a whole
constexpr size_t max_ranks = 256;

/// One line, whatever bytes the texts have.
std::string dump(const ordered_json& json) { return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace); }

const MetricSeries* find(const RunReader& run, const std::string& name) {
  const auto found = run.metrics().find(name);
  return found == run.metrics().end() || found->second.steps.empty() ? nullptr : &found->second;
}

/// The last finite value, or null.
ordered_json last_value(const RunReader& run, const std::string& name) {
  const MetricSeries* series = find(run, name);
  if (series == nullptr) return nullptr;
  const auto last =
      std::find_if(series->values.rbegin(), series->values.rend(), [](double v) { return std::isfinite(v); });
  return last == series->values.rend() ? ordered_json(nullptr) : ordered_json(*last);
}

ordered_json least_value(const RunReader& run, const std::string& name) {
  double least = std::numeric_limits<double>::infinity();
  if (const MetricSeries* series = find(run, name)) {
    for (const double value : series->values) least = value < least ? value : least;
  }
  return std::isfinite(least) ? ordered_json(least) : ordered_json(nullptr);
}

/// Seconds until the last step, or null: the pace of the last fifth of the run so far, evaluations included.
ordered_json time_left(const RunReader& run) {
  const int64_t left = run.max_steps() - run.last_step();
  if (!run.running() || run.max_steps() == 0 || run.last_step() == 0 || left < 0) return nullptr;
  if (const MetricSeries* wall = find(run, "wall_time"); wall != nullptr && wall->steps.size() > 1) {
    const size_t last = wall->steps.size() - 1, first = last - std::max<size_t>(1, last / 5);
    const double seconds = wall->values[last] - wall->values[first];
    const auto steps = static_cast<double>(wall->steps[last] - wall->steps[first]);
    if (seconds > 0 && steps > 0) return static_cast<double>(left) * seconds / steps;
  }
  const ordered_json seconds = last_value(run, "seconds/step");
  return seconds.is_null() ? seconds : ordered_json(static_cast<double>(left) * seconds.get<double>());
}

const char* state_of(const RunReader& run) {
  if (!run.problem().empty()) return "problem";
  if (run.finished()) return "finished";
  return run.running() ? "running" : "stopped";
}

/// Row of the list.
ordered_json row_of(const RunReader& run, size_t number) {
  ordered_json row = ordered_json::object();
  row["id"] = number;
  row["name"] = run.name();
  row["folder"] = run.folder().string();
  row["state"] = state_of(run);
  row["problem"] = run.problem();
  row["step"] = run.last_step();
  row["max_steps"] = run.max_steps();
  row["wall_time"] = run.wall_time();
  row["time_left"] = time_left(run);
  row["loss"] = last_value(run, "loss_mean");
  row["validation_loss"] = last_value(run, "validation_loss");
  row["best_validation_loss"] = least_value(run, "validation_loss");
  row["tokens_per_second"] = last_value(run, "tokens_per_second");
  return row;
}

/// Last states that the ranks wrote about themselves in the run's folder `status`, in the order of their numbers; none
/// while no job runs. "silent": minutes since then.
ordered_json rank_states(const std::filesystem::path& folder) {
  std::map<int64_t, ordered_json> by_rank;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder / "status", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::filesystem::path& path = entry->path();
    if (!path.filename().string().starts_with("rank-")) continue;
    std::error_code ignored;
    if (std::filesystem::is_symlink(path, ignored)) continue;  // it could lead out of the run
    std::ifstream file(path, std::ios::binary);
    std::string text(max_ranks * status_bytes, '\0');
    file.read(text.data(), static_cast<std::streamsize>(text.size()));
    text.resize(static_cast<size_t>(file.gcount()));
    for (const RankStatus& status : parse_statuses(text)) {
      by_rank[status.rank] = {{"rank", status.rank},
                              {"host", status.process.host},
                              {"step", status.step},
                              {"doing", describe(status)},
                              {"silent", std::max<int64_t>(0, (std::time(nullptr) - status.written) / 60)}};
    }
  }
  ordered_json states = ordered_json::array();
  for (auto& [rank, state] : by_rank) {
    if (states.size() < max_ranks) states.push_back(std::move(state));
  }
  return states;
}

std::string detail_of(const RunReader& run, size_t number) {
  ordered_json detail = ordered_json::object();
  detail["run"] = number;
  detail["log"] = run.log_tail(log_lines);
  detail["samples"] = ordered_json::array();
  const std::vector<RunSample>& samples = run.samples();
  for (size_t i = samples.size() - std::min(samples.size(), max_samples); i < samples.size(); ++i) {
    detail["samples"].push_back({{"step", samples[i].step},
                                 {"prompt", samples[i].prompt.substr(0, max_sample_bytes)},
                                 {"text", samples[i].text.substr(0, max_sample_bytes)}});
  }
  detail["ranks"] = rank_states(run.folder());
  return dump(detail);
}

}  // namespace

RunBoard::RunBoard(std::vector<std::string> arguments) : arguments_(std::move(arguments)) {
  for (const std::string& argument : arguments_) {
    if (!std::filesystem::is_directory(argument)) run_folders({argument});  // throws
  }
  add_new_runs();
}

void RunBoard::add_new_runs() {
  for (const auto& folder : find_runs(arguments_)) {
    if (known_.contains(folder.string())) continue;
    const auto place = runs_.size() < max_runs ? runs_.end() : std::ranges::find_if(runs_, is_deleted);
    if (runs_.size() == max_runs && place == runs_.end()) {
      if (!std::exchange(has_warned_, true)) {
        fmt::print(stderr, "warning: {} runs are shown at most: {} is left out, and so are later ones\n", max_runs,
                   printable(folder.string()));
      }
      return;
    }
    known_.insert(folder.string());
    auto run = std::make_unique<Run>(folder);
    if (place == runs_.end()) {
      runs_.push_back(std::move(run));
    } else {
      known_.erase((*place)->reader.folder().string());
      run->reset_at = version_ + 1;  // watchers of the deleted run get all of this one
      *place = std::move(run);
    }
  }
}

bool RunBoard::is_deleted(const std::unique_ptr<Run>& run) {
  std::error_code error;
  return !std::filesystem::exists(run->reader.folder(), error) && !error;
}

void RunBoard::refresh(const std::set<size_t>& followed) {
  const uint64_t call = calls_++;
  const bool reads_all = call % calls_between_reads == 0;
  if (call > 0 && call % calls_between_searches == 0) add_new_runs();
  ++version_;
  bool changed = version_ == 1;
  for (size_t i = 0; i < runs_.size(); ++i) {
    const bool is_followed = followed.contains(i);
    if (reads_all || is_followed || runs_[i]->row.is_null()) changed |= read(i, is_followed);
  }
  if (!changed) --version_;
}

bool RunBoard::is_rewritten(const Run& run) {
  if (run.events != run.reader.events().size()) return true;
  return std::ranges::any_of(run.growth, [&](const auto& entry) {
    const auto now = run.reader.metrics().find(entry.first);
    return now == run.reader.metrics().end() || now->second.steps.size() < entry.second.back().second;
  });
}

/// Returns true if anything has changed, which is then of the new version.
bool RunBoard::read(size_t number, bool followed) {
  Run& run = *runs_[number];
  bool changed = run.reader.refresh();
  if (changed && is_rewritten(run)) {
    run.growth.clear();
    run.reset_at = version_;
  }
  run.events = run.reader.events().size();
  for (const auto& [name, series] : run.reader.metrics()) {
    Growth& growth = run.growth[name];
    if (growth.empty() || growth.back().second < series.steps.size())
      growth.emplace_back(version_, series.steps.size());
  }
  if (ordered_json row = row_of(run.reader, number); row != run.row) {
    run.row = std::move(row);
    run.row_at = version_;
    changed = true;
  }
  if (!followed) return changed;
  if (std::string detail = detail_of(run.reader, number); detail != run.detail) {
    run.detail = std::move(detail);
    run.detail_at = version_;
    changed = true;
  }
  return changed;
}

void RunBoard::append_series(const Run& run, size_t number, uint64_t since, std::string& out) {
  const bool reset = since < run.reset_at || since == 0;
  std::string series;
  for (const auto& [name, growth] : run.growth) {
    const auto known =
        reset ? growth.begin() : std::ranges::upper_bound(growth, since, {}, [](const auto& g) { return g.first; });
    const size_t from = known == growth.begin() ? 0 : std::prev(known)->second;
    const MetricSeries& values = run.reader.metrics().at(name);
    if (from >= values.steps.size()) continue;
    series += fmt::format("{}{}:", series.empty() ? "" : ",", dump(name));
    series += curve_json(values, series_buckets, from);
  }
  if (series.empty() && !reset) return;
  ordered_json marks = ordered_json::array();
  for (const RunEvent& event : run.reader.events()) {
    marks.push_back({{"kind", event.kind == RunEvent::Kind::resume ? "resume" : "rollback"},
                     {"step", event.step},
                     {"text", event.text}});
  }
  out += fmt::format("event: series\ndata: {{\"run\":{},\"reset\":{},\"series\":{{{}}},\"marks\":{}}}\n\n", number,
                     reset, series, dump(marks));
}

std::string RunBoard::events(const std::vector<size_t>& followed, uint64_t since) const {
  std::string out;
  ordered_json rows = ordered_json::array();
  for (const auto& run : runs_) {
    if (run->row_at > since) rows.push_back(run->row);
  }
  if (!rows.empty()) out += fmt::format("event: runs\ndata: {}\n\n", dump(rows));
  for (const size_t number : followed) {
    if (number < runs_.size()) append_series(*runs_[number], number, since, out);
  }
  if (!followed.empty() && followed.front() < runs_.size() && runs_[followed.front()]->detail_at > since) {
    out += fmt::format("event: detail\ndata: {}\n\n", runs_[followed.front()]->detail);
  }
  return out;
}

}  // namespace llmtrain
