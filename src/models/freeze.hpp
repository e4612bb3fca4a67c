#pragma once
// The rule of [freeze]: which parameters are trained, by the names that they have in the model's files.

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "layers/context.hpp"
#include "models/freeze_config.hpp"
#include "models/model_config.hpp"

namespace llmtrain {

struct FrozenPart {
  std::set<std::string, std::less<>> trained;               ///< names of tensors
  std::vector<std::pair<std::string, std::string>> errors;  ///< key of [freeze], and what is wrong with it
};

/// Sizes of the model do not matter, and may be unknown.
FrozenPart choose_trained(const FreezeConfig& config, const ModelConfig& model);

/// The rule of a configuration without errors.
TrainedRule freeze_rule(const FreezeConfig& config, const ModelConfig& model);

}  // namespace llmtrain
