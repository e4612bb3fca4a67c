#include "sweep/sweep_file.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>

#include "core/error.hpp"

namespace llmtrain {

namespace {

constexpr int64_t max_values = 1000;  // of a range

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

[[noreturn]] void refuse(const std::string& what) { throw UserError(ExitCode::deck, what); }

/// "1e-4 .. 1e-2 log 5"
SweepRange parse_range(std::string_view text) {
  SweepRange range;
  const size_t dots = text.find("..");
  const std::string_view low = trimmed(text.substr(0, dots));
  std::string_view rest = trimmed(text.substr(dots + 2));
  const auto word = [&] {
    const std::string_view first = rest.substr(0, rest.find_first_of(" \t\n"));
    rest = trimmed(rest.substr(first.size()));
    return first;
  };
  const std::string_view high = word();
  range.low = parse_number(low, {});
  range.high = parse_number(high, {});
  range.whole = (std::string(low) + std::string(high)).find_first_of(".eE") == std::string::npos;
  if (rest.starts_with("log")) range.logarithmic = word() == "log";
  if (!rest.empty()) range.count = parse_count(rest, between(2, max_values));
  if (!(range.low < range.high)) refuse("the first end of a range must be the smaller one");
  if (range.logarithmic && range.low <= 0) refuse("both ends of a range with log must be above 0");
  return range;
}

/// The text between the braces, and the clauses behind them.
SweepChoice parse_choice(std::string_view text) {
  SweepChoice choice;
  const size_t end = text.find('}');
  if (end == std::string_view::npos) refuse("the values have no closing brace");
  const std::string_view inside = trimmed(text.substr(1, end - 1));
  if (inside.find("..") != std::string_view::npos) {
    choice.range = parse_range(inside);
    for (int64_t i = 0; i < choice.range->count; ++i) {
      const double share = static_cast<double>(i) / static_cast<double>(choice.range->count - 1);
      const std::string value = value_at(*choice.range, share);
      if (choice.values.empty() || choice.values.back() != value) choice.values.push_back(value);
    }
  } else {
    for (const std::string_view value : split_list(inside)) choice.values.emplace_back(value);
    if (choice.values.empty()) refuse("there is no value between the braces");
  }
  const std::string_view clause = trimmed(text.substr(end + 1));
  if (clause.empty()) return choice;
  const size_t equals = clause.find('=');
  if (clause.starts_with("with ")) {
    choice.follows = trimmed(clause.substr(5));
  } else if (clause.starts_with("if ") && equals != std::string_view::npos) {
    choice.condition = trimmed(clause.substr(3, equals - 3));
    choice.condition_value = trimmed(clause.substr(equals + 1));
  } else {
    refuse(fmt::format("'{}' follows the values: there may be 'with section.key' or 'if section.key = value'", clause));
  }
  return choice;
}

/// Braces begin values, but not those of templates.
bool has_values(std::string_view text) {
  return text.starts_with('{') && !text.starts_with("{{") && !text.starts_with("{%") && !text.starts_with("{#");
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in.is_open() || in.bad()) {
    throw UserError(ExitCode::missing_input, fmt::format("{}: the sweep cannot be read", path));
  }
  return text;
}

class Reader {
 public:
  explicit Reader(const std::string& path) : errors_(path) {
    sweep_.name = path;
    sweep_.config.visit(keys_);
  }

  SweepFile read() {
    RawDeck deck = read_deck_text(read_text(sweep_.name), errors_);
    errors_.raise();
    std::erase_if(deck.sections, [](const RawSection& section) { return section.name == "sweep"; });
    for (RawKey& key : deck.keys) take(std::move(key));
    sweep_.deck.sections = std::move(deck.sections);
    for (size_t i = 0; i < sweep_.choices.size(); ++i) check(i);
    const SweepConfig& c = sweep_.config;
    if (c.method == SweepMethod::random && c.runs == 0) {
      errors_.add(DeckErrors::no_line, "sweep.runs", "random draws need the number of runs");
    }
    if (sweep_.choices.empty()) {
      errors_.add(DeckErrors::no_line, {},
                  "no key has several values: write, for example, learning_rate = {1e-4, 1e-3}");
    }
    errors_.raise();
    return std::move(sweep_);
  }

 private:
  void take(RawKey raw) {
    const std::string key = raw.section + "." + raw.name;
    try {
      if (raw.section == "sweep") {
        const DeckKeys::Key* known = keys_.find(key);
        if (known == nullptr) refuse("unknown key: there are method, runs, seed and metric");
        return known->parse(raw.text);
      }
      if (key == "run.name" || key == "run.output") refuse("the sweep names its runs and their folder");
      const auto same = [&](const RawKey& other) { return other.section == raw.section && other.name == raw.name; };
      if (std::ranges::any_of(sweep_.deck.keys, same)) refuse("the key is given twice");
      if (has_values(raw.text)) {
        SweepChoice choice = parse_choice(raw.text);
        choice.key = key;
        choice.line = raw.line;
        sweep_.choices.push_back(std::move(choice));
      }
      sweep_.deck.keys.push_back(std::move(raw));
    } catch (const UserError& error) {
      errors_.add(raw.line, key, error.what());
    }
  }

  const SweepChoice* find_before(const std::string& key, size_t end) const {
    const auto last = sweep_.choices.begin() + static_cast<std::ptrdiff_t>(end);
    const auto found = std::find_if(sweep_.choices.begin(), last, [&](const SweepChoice& c) { return c.key == key; });
    return found == last ? nullptr : &*found;
  }

  void check(size_t index) {
    const SweepChoice& choice = sweep_.choices[index];
    const auto fail = [&](const std::string& what) { errors_.add(choice.line, choice.key, what); };
    if (choice.values.empty() && sweep_.config.method != SweepMethod::random) {
      fail(fmt::format("a range in a {} needs a number of values: {{1e-4 .. 1e-2 log 5}}",
                       name_of(sweep_.config.method)));
    }
    if (!choice.follows.empty()) {
      const SweepChoice* leader = find_before(choice.follows, index);
      if (leader == nullptr || leader->values.size() != choice.values.size() || choice.values.empty()) {
        fail(fmt::format("{} must come before it and have as many values", choice.follows));
      }
    }
    if (choice.condition.empty()) return;
    const bool is_fixed = std::ranges::any_of(sweep_.deck.keys, [&](const RawKey& key) {
      return key.section + "." + key.name == choice.condition && !has_values(key.text);
    });
    const SweepChoice* leader = find_before(choice.condition, index);
    if (leader == nullptr && !is_fixed)
      fail(choice.condition + " must be in the deck, before it if it has several values");
    const bool can_hold = leader == nullptr || leader->values.empty() ||
                          std::ranges::find(leader->values, choice.condition_value) != leader->values.end();
    if (!can_hold) fail(fmt::format("{} is never {}", choice.condition, choice.condition_value));
  }

  SweepFile sweep_;
  DeckKeys keys_;
  DeckErrors errors_;
};

}  // namespace

/// Four digits suffice, and are read more easily.
std::string value_at(const SweepRange& range, double share) {
  const double value = range.logarithmic ? range.low * std::pow(range.high / range.low, share)
                                         : range.low + share * (range.high - range.low);
  return range.whole ? fmt::format("{:.0f}", value) : fmt::format("{:.4g}", value);
}

void SweepConfig::visit(DeckKeys& keys) {
  keys.section("sweep", "Values of a deck's keys that several runs try.");
  keys.key("method", method, {.doc = "Every combination, one list, or random draws."});
  keys.key("runs", runs,
           {.range = between(0, 100000),
            .doc = "Number of random draws. With grid and list: only the first runs; 0 means all."});
  keys.key("seed", seed, {.range = at_least(0), .doc = "Seed of random draws."});
  keys.key("metric", metric, {.doc = "Metric by which runs are sorted, as in metrics.jsonl."});
}

SweepFile read_sweep(const std::string& path) { return Reader(path).read(); }

}  // namespace llmtrain
