#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "core/error.hpp"
#include "core/philox.hpp"
#include "sweep/sweep_file.hpp"

namespace llmtrain {

namespace {

constexpr size_t max_runs = 100000;
constexpr uint64_t max_draws_for_a_run = 1000;

using Values = std::vector<std::optional<std::string>>;

class Planner {
 public:
  explicit Planner(const SweepFile& sweep) : sweep_(sweep) {}

  std::vector<Values> plan() {
    switch (sweep_.config.method) {
      case SweepMethod::grid:
        extend({});
        break;
      case SweepMethod::list:
        list();
        break;
      case SweepMethod::random:
        draw();
        break;
    }
    const auto wanted = static_cast<size_t>(sweep_.config.runs);
    if (wanted > 0 && found_.size() > wanted) found_.resize(wanted);
    return std::move(found_);
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw UserError(ExitCode::deck, fmt::format("{}: {}", sweep_.name, what));
  }

  size_t index_of(const std::string& key) const {
    const auto found = std::ranges::find(sweep_.choices, key, &SweepChoice::key);
    return static_cast<size_t>(found - sweep_.choices.begin());
  }

  /// True if the condition of the next choice holds with these values of those before it.
  bool applies(const SweepChoice& choice, const Values& values) const {
    if (choice.condition.empty()) return true;
    if (const size_t index = index_of(choice.condition); index < values.size()) {
      return values[index] == choice.condition_value;
    }
    return std::ranges::any_of(sweep_.deck.keys, [&](const RawKey& key) {
      return key.section + "." + key.name == choice.condition && key.text == choice.condition_value;
    });
  }

  /// The value that goes with that of another choice.
  std::optional<std::string> following(const SweepChoice& choice, const Values& values) const {
    const size_t leader = index_of(choice.follows);
    const std::vector<std::string>& of_leader = sweep_.choices[leader].values;
    if (!values[leader]) return std::nullopt;
    return choice.values[static_cast<size_t>(std::ranges::find(of_leader, *values[leader]) - of_leader.begin())];
  }

  void extend(Values values) {
    const auto wanted = static_cast<size_t>(sweep_.config.runs);
    if (wanted > 0 && found_.size() == wanted) return;
    if (values.size() == sweep_.choices.size()) {
      if (found_.size() == max_runs) refuse(fmt::format("the grid has more than {} runs: choose at random", max_runs));
      found_.push_back(std::move(values));
      return;
    }
    const SweepChoice& choice = sweep_.choices[values.size()];
    std::vector<std::optional<std::string>> options(choice.values.begin(), choice.values.end());
    if (!choice.follows.empty()) options = {following(choice, values)};
    if (!applies(choice, values)) options = {std::nullopt};
    for (const std::optional<std::string>& option : options) {
      values.push_back(option);
      extend(values);
      values.pop_back();
    }
  }

  void list() {
    const size_t count = sweep_.choices.front().values.size();
    for (const SweepChoice& choice : sweep_.choices) {
      if (choice.values.size() == count) continue;
      refuse(fmt::format("a list has as many values of every key, but {} has {}, and {} has {}",
                         sweep_.choices.front().key, count, choice.key, choice.values.size()));
    }
    for (size_t i = 0; i < count; ++i) {
      Values values;
      for (const SweepChoice& choice : sweep_.choices) {
        values.push_back(applies(choice, values) ? std::optional(choice.values[i]) : std::nullopt);
      }
      found_.push_back(std::move(values));
    }
  }

  /// The draw of a value depends on the seed, the key, and the number of the draw alone: a further key changes no
  /// other.
  std::string drawn(const SweepChoice& choice, uint64_t draw) const {
    const uint64_t key = static_cast<uint64_t>(sweep_.config.seed) ^ hash_of_name(choice.key);
    const double share = static_cast<double>(philox4x32(key, draw, 0).v[0]) / 4294967296.0;
    if (choice.values.empty()) {
      SweepRange range = *choice.range;
      if (!range.whole || range.logarithmic) return value_at(range, share);
      return fmt::format("{:.0f}", std::floor(range.low + share * (range.high - range.low + 1)));
    }
    return choice.values[static_cast<size_t>(share * static_cast<double>(choice.values.size()))];
  }

  void draw() {
    std::set<Values> seen;
    uint64_t draws = 0;
    for (int64_t i = 0; i < sweep_.config.runs; ++i) {
      const uint64_t last = draws + max_draws_for_a_run;
      for (bool is_new = false; !is_new; ++draws) {
        if (draws == last)
          refuse(fmt::format("sweep.runs: there are not {} different runs, but about {}", sweep_.config.runs, i));
        Values values;
        for (const SweepChoice& choice : sweep_.choices) {
          values.push_back(!applies(choice, values)  ? std::nullopt
                           : !choice.follows.empty() ? following(choice, values)
                                                     : std::optional(drawn(choice, draws)));
        }
        is_new = seen.insert(values).second;
        if (is_new) found_.push_back(std::move(values));
      }
    }
  }

  const SweepFile& sweep_;
  std::vector<Values> found_;
};

/// The deck of a run: the sweep's, with its values in place of the choices.
std::string deck_text(const SweepFile& sweep, const SweepRun& run, const std::string& output) {
  std::vector<std::string> sections = {"run"};
  std::map<std::string, std::string> lines;
  lines["run"] = fmt::format("name = {}\n{}\n", run.name, deck_line("output", print_text(output)));
  for (const RawKey& key : sweep.deck.keys) {
    const auto choice = std::ranges::find(sweep.choices, key.section + "." + key.name, &SweepChoice::key);
    std::string value = key.text;
    if (choice != sweep.choices.end()) {
      const std::optional<std::string>& own = run.values[static_cast<size_t>(choice - sweep.choices.begin())];
      if (!own) continue;
      value = *own;
    }
    std::ranges::replace(value, '\n', ' ');  // of a list
    if (std::ranges::find(sections, key.section) == sections.end()) sections.push_back(key.section);
    lines[key.section] += deck_line(key.name, value) + "\n";
  }
  std::string text = fmt::format("; run {} of {}: {}\n", run.name, sweep.name, values_text(sweep, run));
  for (const std::string& section : sections) text += fmt::format("[{}]\n{}", section, lines[section]);
  return text;
}

}  // namespace

std::string values_text(const SweepFile& sweep, const SweepRun& run) {
  std::string text;
  for (size_t i = 0; i < sweep.choices.size(); ++i) {
    if (!run.values[i]) continue;
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", sweep.choices[i].key, *run.values[i]);
  }
  return text;
}

std::vector<SweepRun> plan_sweep(const SweepFile& sweep, const std::string& output) {
  std::vector<SweepRun> runs;
  for (Values& values : Planner(sweep).plan()) {
    SweepRun& run = runs.emplace_back();
    run.values = std::move(values);
  }
  const size_t digits = std::max<size_t>(3, std::to_string(runs.size()).size());
  for (size_t i = 0; i < runs.size(); ++i) {
    runs[i].name = fmt::format("{:0{}}", i + 1, digits);
    runs[i].deck = deck_text(sweep, runs[i], output);
  }
  return runs;
}

}  // namespace llmtrain
