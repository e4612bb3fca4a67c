#include "rewards/reward_functions_config.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "core/deck/deck.hpp"
#include "core/deck/suggestion.hpp"
#include "core/files/json_reader.hpp"
#include "text/split/regex.hpp"

namespace llmtrain {

namespace {

constexpr double max_length = 1 << 30;  ///< tokens

}  // namespace

int64_t RewardSpec::length() const { return parse_count(argument, between(1, max_length)); }

RewardSpec parse_reward(std::string_view text) {
  const auto& names = enum_names<RewardSpec::Kind>;
  const size_t colon = text.find(':');
  const std::string_view name = text.substr(0, colon);
  const auto found = std::ranges::find(names, name);
  if (colon == std::string_view::npos || found == names.end()) {
    throw UserError(
        ExitCode::deck,
        fmt::format("{} is not a reward function: use model:DIR, exact:COLUMN, number:COLUMN, regex:PATTERN, "
                    "length:N or command:PROGRAM{} (write a comma that belongs to one as \\,)",
                    printable(text), found == names.end() ? did_you_mean(name, names) : ""));
  }
  RewardSpec spec{static_cast<RewardSpec::Kind>(found - names.begin()), std::string(text.substr(colon + 1))};
  if (spec.argument.find_first_not_of(" \t\n") == std::string::npos) {
    throw UserError(ExitCode::deck, fmt::format("{} needs a value after the colon", printable(text)));
  }
  try {
    if (spec.kind == RewardSpec::Kind::length) spec.length();
    if (spec.kind == RewardSpec::Kind::regex) Regex(spec.argument, "", Regex::Syntax::perl);
  } catch (const UserError& error) {
    throw UserError(ExitCode::deck, fmt::format("{}: {}", printable(text), error.what()));
  }
  return spec;
}

void RewardFunctionsConfig::visit(DeckKeys& keys) {
  keys.section("rewards", "Score the completions of a rollout (run.task = ppo, grpo).", Change::breaks,
               reinforcement_tasks, true);
  keys.key("functions", functions,
           {.doc = "Functions whose weighted sum is the reward of a completion. model:DIR: score of a reward model. "
                   "exact:COLUMN: 1 if the completion equals the row's column, without white space at the ends, else "
                   "0. number:COLUMN: 1 if the last number of the completion has the value of the last number of the "
                   "column, else 0. regex:PATTERN: 1 if the pattern (PCRE2) is found in the completion, else 0; write "
                   "a comma as \\, and \\s as \\\\s. length:N: 0 up to N tokens, falling linearly to -1 at 2 N. "
                   "command:PROGRAM: a program with arguments, without a shell, that reads a JSON line for each "
                   "completion and writes a number for each. docs/preferences.md describes them."});
  keys.key("weights", weights, {.doc = "A weight for each function; empty: 1 each."});
  keys.key("time_limit", time_limit,
           {.doc = "Time that a command: may take to score a batch, for each rank.", .change = Change::nothing});
}

void RewardFunctionsConfig::resolve(DeckLoader& deck) {
  deck.check(time_limit.seconds > 0, {"rewards.time_limit"}, "must be longer than 0 s");
  if (!deck.sound({"rewards.functions", "rewards.weights"})) return;
  for (const std::string& text : functions) {
    try {
      parse_reward(text);
    } catch (const UserError& error) {
      deck.fail("rewards.functions", error.what());
    }
  }
  for (auto text = functions.begin(); text != functions.end(); ++text) {
    const bool repeated = std::find(functions.begin(), text, *text) != text;
    deck.check(!repeated, {"rewards.functions"}, fmt::format("{} is listed twice", printable(*text)));
  }
  deck.check(weights.empty() || weights.size() == functions.size(), {"rewards.weights", "rewards.functions"},
             fmt::format("{} weights for {} functions: give one for each", weights.size(), functions.size()));
}

std::optional<std::string> RewardFunctionsConfig::model_folder() const {
  constexpr std::string_view prefix = "model:";
  const auto found = std::ranges::find_if(functions, [&](const std::string& text) { return text.starts_with(prefix); });
  return found == functions.end() ? std::nullopt : std::optional(found->substr(prefix.size()));
}

std::vector<RewardSpec> RewardFunctionsConfig::specs() const {
  std::vector<RewardSpec> all;
  for (const std::string& text : functions) all.push_back(parse_reward(text));
  return all;
}

}  // namespace llmtrain
