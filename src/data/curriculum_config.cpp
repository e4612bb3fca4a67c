#include "data/curriculum_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/deck/deck.hpp"

namespace llmtrain {
namespace {

constexpr double no_limit = std::numeric_limits<double>::infinity();

/// Returns NaN for a text that is not a number.
double number_of(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool read = error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
  return read ? value : std::numeric_limits<double>::quiet_NaN();
}

/// Returns -1 for a text that is not a number.
int64_t whole_number(std::string_view text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

bool is_whole(double value) { return std::floor(value) == value; }

/// A count, as of tokens, or a number with a decimal point.
struct CountOrNumber : DeckValue<double> {
  static double parse(std::string_view text, const KeyInfo& info) {
    if (text.find_first_of(".eE") != std::string_view::npos) return parse_number(text, info.range);
    return static_cast<double>(parse_count(text, info.range));
  }
};

struct DifficultyCodec {
  using Difficulty = CurriculumConfig::Difficulty;
  static constexpr std::string_view column_prefix = "column:";
  static constexpr std::array<std::string_view, 4> names = name_list("rarity", "length", "loss", "column:NAME");

  static Difficulty parse(std::string_view text, const KeyInfo&) {
    if (text.starts_with(column_prefix) && text.size() > column_prefix.size()) {
      return {Difficulty::Kind::column, parse_text(text.substr(column_prefix.size()))};
    }
    const auto kind = static_cast<Difficulty::Kind>(parse_name(text, names));
    if (kind != Difficulty::Kind::column) return {kind};
    throw UserError(ExitCode::deck, "column:NAME must name the column of the rows, as in column:difficulty");
  }
  static std::string print(const Difficulty& difficulty) {
    if (difficulty.kind != Difficulty::Kind::column) return std::string(name_of(difficulty.kind));
    return std::string(column_prefix) + print_text(difficulty.column);
  }
  static std::string type() { return "rarity / length / loss / column:NAME"; }
};

}  // namespace

void CurriculumConfig::visit(DeckKeys& keys) {
  keys.section("curriculum", "Begin with short or easy samples. docs/data.md shows it.", Change::breaks,
               tasks_with(TaskSamples::texts) | conversation_tasks, true);
  keys.key("strategy", strategy,
           {.doc = "length: cut each sample to the current length. difficulty: draw samples from the easiest ones, "
                   "ever more of them. none: neither."});
  keys.key<DifficultyCodec>(
      "difficulty", difficulty,
      {.doc = "Order of samples from easy to hard, with strategy = difficulty. rarity: by the sum of -log of the "
              "frequencies of their tokens in the data. length: by their tokens. loss: by their mean loss, in nats per "
              "trained token, under the model of model.path, which all ranks compute before training. column:NAME: by "
              "a column of numbers in the rows. loss and rarity are kept in data.cache."});
  keys.key("scale", scale,
           {.doc = "Meaning of start and end with strategy = difficulty. percent: draw from the easiest percentage of "
                   "the samples. values: from the samples whose difficulty is at most the value. They are DeepSpeed's "
                   "difficulty types percentile and value."});
  keys.key<CountOrNumber>("start", start,
                          {.unit = "tokens, percent of the samples, or difficulty",
                           .doc = "Value at the beginning.",
                           .automatic = "multiple_of, or 10 %; required with scale = values"});
  keys.key<CountOrNumber>("end", end,
                          {.unit = "tokens, percent of the samples, or difficulty",
                           .doc = "Value from the step `steps` on.",
                           .automatic = "batch.sequence_length, or 100 %; required with scale = values"});
  keys.key("steps", steps, {.unit = "steps", .range = at_least(0), .doc = "Number of steps from start to end."});
  keys.key(
      "shape", shape,
      {.doc = "Growth of the value. root: with the root of the step, fast at first. steps: by the list levels. They "
              "are DeepSpeed's fixed_linear, fixed_root and fixed_discrete."});
  keys.key("root_degree", root_degree, {.range = between(1, 16), .doc = "Degree of the root of shape = root."});
  keys.key<CountOrNumber>(
      "multiple_of", multiple_of,
      {.range = above(0),
       .doc = "Values are rounded down to a multiple of it: fewer distinct lengths, so fewer kernels to compile.",
       .automatic = "8 tokens, 1 %, or with scale = values a hundredth of the growth"});
  keys.key(
      "levels", levels,
      {.doc =
           "Values of shape = steps, each as VALUE:STEP, the value up to this step; the last one is a value alone, as "
           "in 64:100, 128:300, 256."});
}

std::vector<CurriculumConfig::Level> CurriculumConfig::parsed_levels() const {
  std::vector<Level> parsed;
  for (size_t i = 0; i < levels.size(); ++i) {
    const std::string_view text = levels[i];
    const size_t colon = text.find(':');
    const bool last = i + 1 == levels.size();
    if (last != (colon == std::string_view::npos)) return {};
    const int64_t until = last ? std::numeric_limits<int64_t>::max() : whole_number(text.substr(colon + 1));
    parsed.push_back({number_of(text.substr(0, colon)), until});
    const Level& level = parsed.back();
    const bool valid = has_values() ? std::isfinite(level.value) : level.value >= 1 && is_whole(level.value);
    const bool grows = i == 0 || (level.value >= parsed[i - 1].value && level.last_step > parsed[i - 1].last_step);
    if (!valid || level.last_step < 1 || !grows) return {};
  }
  return parsed;
}

void CurriculumConfig::resolve_levels(DeckLoader& deck, double most) {
  const std::vector<Level> parsed = parsed_levels();
  deck.check(!parsed.empty(), {"curriculum.levels"},
             fmt::format("{} VALUE:STEP, ..., VALUE, where values and steps grow, as in 64:100, 128:300, 256",
                         levels.empty() ? "is required with shape = steps:" : "must be"));
  if (parsed.empty()) return;
  deck.check(parsed.back().value <= most, {"curriculum.levels"},
             fmt::format("{} is above the maximum: {}", parsed.back().value, most));
  for (const char* key : {"start", "end", "steps", "root_degree", "multiple_of"}) {
    deck.unused(fmt::format("curriculum.{}", key), "shape = steps has levels");
  }
}

void CurriculumConfig::mark_unused(DeckLoader& deck) const {
  const auto unused = [&](const char* key, const char* why) { deck.unused(fmt::format("curriculum.{}", key), why); };
  if (!active()) {
    for (const char* key :
         {"difficulty", "scale", "start", "end", "steps", "shape", "root_degree", "multiple_of", "levels"}) {
      unused(key, "strategy = none");
    }
    return;
  }
  if (strategy == Strategy::length) {
    unused("difficulty", "strategy = length");
    unused("scale", "strategy = length");
  }
  if (shape != Shape::steps) unused("levels", "only used with shape = steps");
  if (shape == Shape::linear) unused("root_degree", "only used with shape = root");
}

/// Values of the keys that the deck does not give.
void CurriculumConfig::resolve_defaults(DeckLoader& deck, double most) {
  const bool by_length = strategy == Strategy::length;
  const bool starts = deck.given("curriculum.start"), ends = deck.given("curriculum.end");
  if (has_values()) {
    deck.check(starts, {"curriculum.start"}, "is required with scale = values: the highest difficulty at first");
    deck.check(ends, {"curriculum.end"}, "is required with scale = values: the highest difficulty in the end");
  }
  if (!by_length && !deck.given("curriculum.multiple_of")) {
    multiple_of = has_values() ? std::max((end - start) / 100, std::numeric_limits<double>::min()) : 1;
    deck.set("curriculum.multiple_of", Origin::automatic,
             has_values() ? "a hundredth of the growth" : "of a percentage");
  }
  if (has_values()) return;
  if (!starts || start == 0) {
    start = by_length ? std::min(multiple_of, most) : 10;
    deck.set("curriculum.start", Origin::automatic, by_length ? "multiple_of" : "10 % of the samples");
  }
  if (!ends || end == 0) {
    end = most;
    deck.set("curriculum.end", Origin::automatic, by_length ? "batch.sequence_length" : "all samples");
  }
}

void CurriculumConfig::resolve(DeckLoader& deck, int64_t sequence_length) {
  mark_unused(deck);
  if (!active()) return;
  const double most = has_values()                   ? no_limit
                      : strategy == Strategy::length ? static_cast<double>(sequence_length)
                                                     : 100;
  if (shape == Shape::steps) return resolve_levels(deck, most);
  resolve_defaults(deck, most);
  deck.check(steps > 0, {"curriculum.steps"}, "is required: the number of steps from start to end");
  deck.check(start <= end && end <= most, {deck.given("curriculum.end") ? "curriculum.end" : "curriculum.start"},
             has_values() ? fmt::format("must grow from start = {} to end = {}", start, end)
                          : fmt::format("must grow from start = {} to end = {}, at most {}", start, end, most));
  if (has_values()) return;
  deck.check(multiple_of <= end, {"curriculum.multiple_of"},
             fmt::format("{} is more than the end = {}: the value would not grow", multiple_of, end));
  const auto check_whole = [&](const char* key, double value) {
    deck.check(value >= 0 && is_whole(value), {fmt::format("curriculum.{}", key)},
               fmt::format("must be a whole number: {}", strategy == Strategy::length ? "tokens" : "percent"));
  };
  check_whole("start", start);
  check_whole("end", end);
  check_whole("multiple_of", multiple_of);
}

double CurriculumConfig::value(int64_t step) const {
  if (shape == Shape::steps) {
    for (const Level& level : parsed_levels()) {
      if (step <= level.last_step) return level.value;
    }
  }
  if (step >= steps) return end;
  const double progress = static_cast<double>(step) / static_cast<double>(steps);
  const double degree = shape == Shape::root ? static_cast<double>(root_degree) : 1.0;
  const double grown = std::pow(progress, 1 / degree) * (end - start) + start;
  const double least = has_values() ? start : std::ceil(start / multiple_of) * multiple_of;
  const double rounded = std::floor((has_values() ? grown : std::floor(grown)) / multiple_of) * multiple_of;
  return std::min(std::max(rounded, least), end);
}

}  // namespace llmtrain
