#include "data/curriculum_config.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/deck/deck.hpp"

namespace llmtrain {
namespace {

/// Returns -1 for a text that is no number.
int64_t whole_number(std::string_view text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

}  // namespace

void CurriculumConfig::visit(DeckKeys& keys) {
  keys.section("curriculum", "Begin with short or easy samples. docs/data.md shows it.", Change::breaks,
               {Task::pretrain, Task::sft}, true);
  keys.key("strategy", strategy,
           {.doc = "length: cut each sample to the current length. difficulty: draw samples from the easiest ones, a "
                   "growing percentage of all. none: neither."});
  keys.key("difficulty", difficulty,
           {.doc = "Order of samples from easy to hard, with strategy = difficulty. rarity: by the sum of -log of the "
                   "frequencies of their tokens in the data. length: by their tokens."});
  keys.key("start", start,
           {.unit = "tokens, or percent of the samples",
            .range = at_least(0),
            .doc = "Value at the beginning.",
            .automatic = "multiple_of, or 10 %"});
  keys.key("end", end,
           {.unit = "tokens, or percent of the samples",
            .range = at_least(0),
            .doc = "Value from the step `steps` on.",
            .automatic = "batch.sequence_length, or 100 %"});
  keys.key("steps", steps, {.unit = "steps", .range = at_least(0), .doc = "Number of steps from start to end."});
  keys.key(
      "shape", shape,
      {.doc = "Growth of the value. root: with the root of the step, fast at first. steps: by the list levels. They "
              "are DeepSpeed's fixed_linear, fixed_root and fixed_discrete."});
  keys.key("root_degree", root_degree, {.range = between(1, 16), .doc = "Degree of the root of shape = root."});
  keys.key(
      "multiple_of", multiple_of,
      {.range = between(1, 1 << 20),
       .doc = "Values are rounded down to a multiple of it: fewer distinct lengths, so fewer kernels to compile."});
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
    parsed.push_back({whole_number(text.substr(0, colon)), until});
    const Level& level = parsed.back();
    const bool grows = i == 0 || (level.value >= parsed[i - 1].value && level.last_step > parsed[i - 1].last_step);
    if (level.value < 1 || level.last_step < 1 || !grows) return {};
  }
  return parsed;
}

void CurriculumConfig::resolve_levels(DeckLoader& deck, int64_t most) {
  const std::vector<Level> parsed = parsed_levels();
  deck.check(!parsed.empty(), {"curriculum.levels"},
             fmt::format("{} VALUE:STEP, ..., VALUE, where values and steps grow, as in 64:100, 128:300, 256",
                         levels.empty() ? "is required with shape = steps:" : "must be"));
  if (parsed.empty()) return;
  deck.check(parsed.back().value <= most, {"curriculum.levels"},
             fmt::format("{} is more than there is: {}", parsed.back().value, most));
  for (const char* key : {"start", "end", "steps", "root_degree", "multiple_of"}) {
    deck.unused(fmt::format("curriculum.{}", key), "shape = steps has levels");
  }
}

void CurriculumConfig::resolve(DeckLoader& deck, int64_t sequence_length) {
  const auto unused = [&](const char* key, const char* why) { deck.unused(fmt::format("curriculum.{}", key), why); };
  if (!active()) {
    for (const char* key : {"difficulty", "start", "end", "steps", "shape", "root_degree", "multiple_of", "levels"}) {
      unused(key, "strategy = none");
    }
    return;
  }
  const bool by_length = strategy == Strategy::length;
  const int64_t most = by_length ? sequence_length : 100;
  if (by_length) unused("difficulty", "strategy = length");
  if (shape == Shape::steps) return resolve_levels(deck, most);
  unused("levels", "they belong to shape = steps");
  if (shape != Shape::root) unused("root_degree", "it belongs to shape = root");
  if (!by_length && !deck.given("curriculum.multiple_of")) {
    multiple_of = 1;
    deck.set("curriculum.multiple_of", Origin::automatic, "of a percentage");
  }
  if (start == 0) {
    start = by_length ? std::min(multiple_of, most) : 10;
    deck.set("curriculum.start", Origin::automatic, by_length ? "multiple_of" : "10 % of the samples");
  }
  if (end == 0) {
    end = most;
    deck.set("curriculum.end", Origin::automatic, by_length ? "batch.sequence_length" : "all samples");
  }
  deck.check(steps > 0, {"curriculum.steps"}, "is required: the number of steps from start to end");
  deck.check(multiple_of <= end, {"curriculum.multiple_of"},
             fmt::format("{} is more than the end = {}: the value would not grow", multiple_of, end));
  deck.check(start <= end && end <= most, {deck.given("curriculum.end") ? "curriculum.end" : "curriculum.start"},
             fmt::format("must grow from start = {} to end = {}, at most {}", start, end, most));
}

int64_t CurriculumConfig::value(int64_t step) const {
  if (shape == Shape::steps) {
    for (const Level& level : parsed_levels()) {
      if (step <= level.last_step) return level.value;
    }
  }
  const double progress = static_cast<double>(step) / static_cast<double>(steps);
  const double degree = shape == Shape::root ? static_cast<double>(root_degree) : 1.0;
  const double grown =
      std::floor(std::pow(progress, 1 / degree) * static_cast<double>(end - start) + static_cast<double>(start));
  const auto whole = static_cast<int64_t>(std::min(grown, 1e15));
  const int64_t least = (start + multiple_of - 1) / multiple_of * multiple_of;
  return step >= steps ? end : std::min(std::max(whole - whole % multiple_of, least), end);
}

}  // namespace llmtrain
