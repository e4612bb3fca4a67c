#include "rewards/reward_function.hpp"

#include <fmt/format.h>

#include "core/error.hpp"

namespace llmtrain {

std::unique_ptr<RewardFunction> make_reward_function(const RewardSpec& spec, Duration time_limit) {
  switch (spec.kind) {
    case RewardSpec::Kind::exact:
      return make_exact_reward(spec.argument);
    case RewardSpec::Kind::number:
      return make_number_reward(spec.argument);
    case RewardSpec::Kind::regex:
      return make_regex_reward(spec.argument);
    case RewardSpec::Kind::length:
      return make_length_reward(spec.length());
    case RewardSpec::Kind::command:
      return make_command_reward(spec.argument, time_limit);
    case RewardSpec::Kind::model:
      break;
  }
  LLMTRAIN_CHECK(false, "a reward model is not a function of texts");
}

std::vector<std::string> reward_names(const RewardFunctionsConfig& config) {
  std::vector<std::string> names;
  std::vector<int> count(enum_names<RewardSpec::Kind>.size());
  for (const RewardSpec& spec : config.specs()) {
    const int number = ++count[static_cast<size_t>(spec.kind)];
    const std::string_view kind = name_of(spec.kind);
    names.push_back(number == 1 ? std::string(kind) : fmt::format("{}_{}", kind, number));
  }
  return names;
}

}  // namespace llmtrain
